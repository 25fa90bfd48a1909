#define _GNU_SOURCE
#include "elf.h"

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct search {
    const char *name;
    const void *beside; /* NULL: in any object but our own */
    void *found;
};

struct tables {
    const ElfW(Sym) * symbols;
    const char *names;
    const uint32_t *hash, *gnu_hash;
};

/* The GNU table ends a chain by a set lowest bit, and its last bucket's chain ends the symbols. */
static size_t count_by_gnu_hash(const uint32_t *table) {
    uint32_t buckets = table[0], first = table[1], words = table[2];
    const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(table + 4) + words);
    const uint32_t *chain = bucket + buckets;
    uint32_t last = 0;
    for (uint32_t at = 0; at < buckets; at++)
        if (bucket[at] > last) last = bucket[at];
    if (last < first) return first;
    while (!(chain[last - first] & 1)) last++;
    return last + 1;
}

/* Some loaders relocate the addresses in the dynamic section, others leave them as they are in the file. */
static const void *address(const struct dl_phdr_info *object, ElfW(Addr) value) {
    return (const void *)(value < object->dlpi_addr ? object->dlpi_addr + value : value);
}

static struct tables tables_of(const struct dl_phdr_info *object) {
    struct tables tables = {.symbols = NULL};
    const ElfW(Dyn) *entry = NULL;
    for (int at = 0; at < object->dlpi_phnum; at++)
        if (object->dlpi_phdr[at].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[at].p_vaddr);
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        const void *value = address(object, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB) tables.symbols = value;
        if (entry->d_tag == DT_STRTAB) tables.names = value;
        if (entry->d_tag == DT_HASH) tables.hash = value;
        if (entry->d_tag == DT_GNU_HASH) tables.gnu_hash = value;
    }
    return tables;
}

static bool lies_in(const struct dl_phdr_info *object, const void *place) {
    for (int at = 0; at < object->dlpi_phnum; at++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[at];
        if (part->p_type == PT_LOAD && (ElfW(Addr))place - object->dlpi_addr - part->p_vaddr < part->p_memsz)
            return true;
    }
    return false;
}

static int look(struct dl_phdr_info *object, size_t size, void *context) {
    struct search *search = context;
    struct tables tables = tables_of(object);
    (void)size;
    if (search->beside ? !lies_in(object, search->beside) : lies_in(object, (const void *)look)) return 0;
    if (!tables.symbols || !tables.names || (!tables.hash && !tables.gnu_hash)) return 0;
    size_t count = tables.hash ? tables.hash[1] : count_by_gnu_hash(tables.gnu_hash);
    for (size_t at = 0; at < count && !search->found; at++) {
        const ElfW(Sym) *symbol = &tables.symbols[at];
        if (symbol->st_shndx == SHN_UNDEF || strcmp(tables.names + symbol->st_name, search->name) != 0) continue;
        search->found = (void *)(object->dlpi_addr + symbol->st_value);
    }
    return search->found != NULL;
}

void *elf_find(const char *name) {
    struct search search = {.name = name};
    dl_iterate_phdr(look, &search);
    return search.found;
}

void *elf_find_beside(const char *name, const void *address) {
    struct search search = {.name = name, .beside = address};
    dl_iterate_phdr(look, &search);
    return search.found;
}
