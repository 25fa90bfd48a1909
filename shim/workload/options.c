#include "options.h"

#include <ctype.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 64 };

static const char USAGE[] =
    "usage: workload [options]\n"
    "Takes GPU memory, computes the complement of what it copied there, copies it back and checks it.\n"
    "  --bytes SIZE    how much to take, like 512MiB or 2g (default: all that is free)\n"
    "  --chunks N      in how many allocations (default 4)\n"
    "  --hold SECONDS  keep it so long between copying in and computing (default 0)\n"
    "  --until FILE    keep it until there is such a file\n"
    "  --compute SECONDS  keep the GPU busy so long meanwhile, and tell each second how many units were done\n"
    "  --kernel MS     a unit is a kernel of so long, on a card of its own (default 1)\n"
    "  --ahead N       so many of them are given to the GPU ahead of time (default 20)\n"
    "  --every MS      compute so long at the beginning of each second, as in a notebook (default: all the time)\n"
    "  --check SIZE    use only so much of each chunk and just hold the rest (default: all of it)\n"
    "  --gpu N         on the N-th GPU (default 0)\n"
    "  --go-on         when memory runs out, go on with the chunks there are\n"
    "Exit status: 0 every byte right, 1 something failed, 2 out of memory.\n";

static void refuse(const char *option, const char *value) {
    fprintf(stderr, "workload: --%s cannot be \"%s\"\n%s", option, value, USAGE);
    exit(EXIT_USAGE);
}

/* "4096", "512m", "2GiB": all of them powers of 1024. */
static uint64_t size(const char *option, const char *text) {
    static const char UNITS[] = "kmgt";
    char *end;
    unsigned long long bytes = strtoull(text, &end, 10);
    const char *unit = *end == '\0' ? NULL : strchr(UNITS, tolower((unsigned char)*end));
    unsigned shift = 0;
    if (unit != NULL) {
        shift = 10 * (unsigned)(unit - UNITS + 1);
        end++;
        if (strcmp(end, "iB") == 0 || strcmp(end, "ib") == 0) end += 2;
    }
    if (!isdigit((unsigned char)*text) || *end != '\0' || bytes == 0 || bytes > UINT64_MAX >> shift)
        refuse(option, text);
    return bytes << shift;
}

static long number(const char *option, const char *text, long low, long high) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < low || value > high) refuse(option, text);
    return value;
}

static double seconds(const char *option, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0 && value < 1e6)) refuse(option, text);
    return value;
}

/* In seconds, more than none. */
static double milliseconds(const char *option, const char *text) {
    double value = seconds(option, text) / 1e3;
    if (value < 1e-6) refuse(option, text);
    return value;
}

struct options options_read(int count, char **words) {
    static const struct option OPTIONS[] = {
        {"bytes", required_argument, NULL, 'b'},
        {"chunks", required_argument, NULL, 'n'},
        {"hold", required_argument, NULL, 's'},
        {"until", required_argument, NULL, 'u'},
        {"check", required_argument, NULL, 'c'},
        {"gpu", required_argument, NULL, 'g'},
        {"go-on", no_argument, NULL, 'o'},
        {"compute", required_argument, NULL, 'C'},
        {"kernel", required_argument, NULL, 'k'},
        {"ahead", required_argument, NULL, 'a'},
        {"every", required_argument, NULL, 'e'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct options options = {.chunks = 4, .check = UINT64_MAX, .kernel = 1e-3, .ahead = 20};
    int option;
    while ((option = getopt_long(count, words, "", OPTIONS, NULL)) != -1) {
        switch (option) {
            case 'b':
                options.bytes = size("bytes", optarg);
                break;
            case 'n':
                options.chunks = (unsigned)number("chunks", optarg, 1, 65535);
                break;
            case 's':
                options.hold = seconds("hold", optarg);
                break;
            case 'u':
                options.until = optarg;
                break;
            case 'c':
                options.check = size("check", optarg) / 8 * 8;
                break;
            case 'g':
                options.gpu = (int)number("gpu", optarg, 0, 1023);
                break;
            case 'C':
                options.compute = seconds("compute", optarg);
                break;
            case 'k':
                options.kernel = milliseconds("kernel", optarg);
                break;
            case 'a':
                options.ahead = (unsigned)number("ahead", optarg, 1, 65535);
                break;
            case 'e':
                options.every = milliseconds("every", optarg);
                if (options.every > 1) refuse("every", optarg);
                break;
            case 'o':
                options.go_on = true;
                break;
            case 'h':
                fputs(USAGE, stdout);
                exit(0);
            default:
                fputs(USAGE, stderr);
                exit(EXIT_USAGE);
        }
    }
    if (optind < count) {
        fprintf(stderr, "workload: what is \"%s\"?\n%s", words[optind], USAGE);
        exit(EXIT_USAGE);
    }
    return options;
}
