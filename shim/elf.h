/* Finding a function without dlsym, for a C library that has no dlvsym (musl): by reading the tables of the libraries
 * that are loaded. */
#ifndef GPUSHARE_ELF_H
#define GPUSHARE_ELF_H

/* The first definition of `name` in any loaded object but our own, in load order; NULL if there is none. */
void *elf_find(const char *name);

/* The definition of `name` in the object that this address is in. */
void *elf_find_beside(const char *name, const void *address);

#endif
