# The simulated card: libcuda.so.1, libnvidia-ml.so.1 and libnccl.so.2 in $(BUILD)/sim. Included by ../Makefile.
# Moved into place when whole: running programs have the old ones mapped.
SIM := $(BUILD)/sim
SIM_DRIVER := $(filter-out sim/nvml% sim/nccl/%,$(wildcard sim/*.c sim/*/*.c))
SIM_NVML := $(wildcard sim/nvml*.c sim/card/*.c)
SIM_FLAGS = -iquote sim -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror -fvisibility=hidden -fPIC -shared -pthread $(if $(filter x86_64,$(MACHINE)),-mcx16)

all: $(SIM)/libcuda.so.1 $(SIM)/libnvidia-ml.so.1 $(SIM)/libnccl.so.2

$(SIM)/libcuda.so.1: $(SIM_DRIVER) $(wildcard sim/*.h sim/*/*.h) sim/build.mk
	mkdir -p $(@D)
	$(PORTABLE_CC) $(SIM_FLAGS) -Wl,-Bsymbolic -Wl,-soname,libcuda.so.1 -o $@.new $(SIM_DRIVER)
	mv $@.new $@

$(SIM)/libnvidia-ml.so.1: $(SIM_NVML) $(wildcard sim/*.h sim/*/*.h) sim/build.mk
	mkdir -p $(@D)
	$(PORTABLE_CC) $(SIM_FLAGS) -Wl,-soname,libnvidia-ml.so.1 -o $@.new $(SIM_NVML)
	mv $@.new $@

$(SIM)/libnccl.so.2: $(wildcard sim/nccl/*) sim/build.mk
	mkdir -p $(@D)
	$(PORTABLE_CC) $(SIM_FLAGS) -Wl,-soname,libnccl.so.2 -o $@.new $(wildcard sim/nccl/*.c) -ldl
	mv $@.new $@
