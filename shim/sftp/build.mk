# Files by SFTP and UNIX sockets, inside containers: $(BUILD)/gpushare-sftp. Included by ../Makefile. Static: the image need have no libc.
all: $(BUILD)/gpushare-sftp

STATIC_CC = $(if $(ZIG),$(ZIG) $(MACHINE)-linux-musl,$(CC))

$(BUILD)/gpushare-sftp: sftp/sftp.c sftp/message.h sftp/connect.c sftp/connect.h sftp/build.mk
	mkdir -p $(@D)
	$(STATIC_CC) -std=gnu11 -O2 -Wall -Wextra -Werror -static -s -o $@.new sftp/sftp.c sftp/connect.c
	mv $@.new $@
