#pragma once
// nccl.h includes CUDA's header of this name, and uses nothing of it.
