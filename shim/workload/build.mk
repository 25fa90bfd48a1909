# The demo's program: $(BUILD)/workload. Included by ../Makefile.
WORKLOAD := $(wildcard workload/*.c)

all: $(BUILD)/workload

$(BUILD)/workload: $(WORKLOAD) $(wildcard workload/*.h) workload/build.mk
	mkdir -p $(@D)
	$(PORTABLE_CC) -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -o $@.new $(WORKLOAD) -ldl
	mv $@.new $@
