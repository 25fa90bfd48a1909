# The guardian: $(BUILD)/guardian. Included by ../Makefile.
all: $(BUILD)/guardian

$(BUILD)/guardian: guardian/guardian.c guardian/build.mk
	mkdir -p $(@D)
	$(PORTABLE_CC) -std=gnu11 -O2 -Wall -Wextra -Werror -pthread -s -o $@.new guardian/guardian.c -ldl
	mv $@.new $@
