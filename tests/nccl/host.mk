# Read in the src folder of NCCL, after its own Makefile: builds the objects of the
# host code with NCCL's own rules and flags, and nothing that needs nvcc.
include Makefile

# Quick to build; the warnings of unmodified sources help nobody here. Not every version
# looks into cccl/ by itself.
CXXFLAGS := $(patsubst -O3,-O1,$(filter-out -g -Wall -Wvla,$(CXXFLAGS))) -w -I$(CUDA_INC)/cccl

.PHONY: host
host: $(INCTARGETS) $(LIBOBJ) $(BINDIR)/$(BINNAME)
	echo $(LIBOBJ) > $(BUILDDIR)/objects
	echo $(LIBTARGET) > $(BUILDDIR)/name
