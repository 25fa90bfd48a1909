# Files by SFTP inside containers: $(BUILD)/gpushare-sftp. Included by ../Makefile. Static: the image need have no libc.
all: $(BUILD)/gpushare-sftp

STATIC_CC = $(if $(ZIG),$(ZIG) $(MACHINE)-linux-musl,$(CC))

$(BUILD)/gpushare-sftp: sftp/sftp.c sftp/message.h sftp/build.mk
	mkdir -p $(@D)
	$(STATIC_CC) -std=gnu11 -O2 -Wall -Wextra -Werror -static -s -o $@.new sftp/sftp.c
	mv $@.new $@
