from __future__ import annotations

import errno
import re

import pytest

from stepscope import errors
from stepscope.errors import (
    DISK_FULL_ERRNOS,
    MachineError,
    MissingExtraError,
    StepscopeError,
    disk_full,
    error_of,
    is_out_of_memory,
    limit_reached,
    nearest,
)

# The exit codes of DESIGN.md.
EXIT_CODES = {
    "StepscopeError": 70,
    "AnswerIsNo": 1,
    "RequestError": 2,
    "DataError": 3,
    "OutOfMemoryError": 4,
    "MachineError": 5,
    "MissingExtraError": 5,
    "Undecided": 6,
    "Interrupted": 130,
}


def family() -> dict[str, type[StepscopeError]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, StepscopeError)
    }


def test_every_error_has_the_exit_code_that_the_design_gives_it():
    assert {name: kind.exit_code for name, kind in family().items()} == EXIT_CODES


def test_the_tree_drawn_in_the_docstring_is_the_tree():
    drawn = re.findall(r"(?:[├└]─ |^ {4})(\w+) +(\d+) ", errors.__doc__ or "", flags=re.MULTILINE)
    assert {name: int(code) for name, code in drawn} == EXIT_CODES


def test_an_error_of_ours_is_never_taken_for_one_of_python_s():
    for kind in family().values():
        assert not issubclass(kind, OSError | ValueError | MemoryError)


def test_a_missing_extra_says_what_for_what_and_how_to_install_it():
    error = MissingExtraError("training", "torch", "train")
    assert isinstance(error, MachineError)
    assert str(error) == (
        "training needs torch, which is not installed. "
        "Install it with: pip install 'stepscope[train]'"
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_a_machine_error_that_says_what_and_what_next(number):
    assert number in DISK_FULL_ERRNOS
    error = disk_full(OSError(number, "No room"), "steps.csv")
    assert error.exit_code == 5
    assert str(error).startswith("cannot write steps.csv: No room.")
    assert "stepscope resume" in str(error)
    assert "cannot write x: no words" in str(disk_full(OSError("no words"), "x"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        *(
            (wrong, "Did you mean 'batch_size'?")
            for wrong in ("batchsize", "BATCH-SIZE", "bach_size")
        ),
        ("onecycle", "Did you mean 'one-cycle'?"),
        ("zzz", "Known: batch_size, epochs, lr, one-cycle."),
    ],
)
def test_the_nearest_name_is_suggested_or_all_are_listed(wrong, said):
    assert nearest(wrong, ["epochs", "batch_size", "lr", "one-cycle"]) == f" {said}"


@pytest.mark.parametrize(
    "kind", [kind for kind in family().values() if kind.__init__ is Exception.__init__]
)
def test_an_error_is_made_again_from_what_a_process_ended_with(kind):
    again = error_of(kind.exit_code, "so it was")
    assert type(again) is kind
    assert str(again) == "so it was"


LIMITS = {
    "[Errno 24] Too many open files: 'x'": (5, "ulimit -n"),
    "BlockingIOError: [Errno 11] Resource temporarily unavailable": (5, "pids.max"),
    "RuntimeError: can't start new thread": (5, "pids.max"),
    "terminate called after throwing an instance of 'std::bad_alloc'": (4, "bad_alloc"),
    "first line\nlibtorch_cpu.so: failed to map segment from shared object": (4, "libtorch_cpu"),
    "MemoryError: ": (4, "MemoryError"),
}


@pytest.mark.parametrize("text", LIMITS)
def test_a_limit_of_the_machine_is_named_with_its_cure(text):
    code, words = LIMITS[text]
    error = limit_reached(text)
    assert error is not None
    assert error.exit_code == code
    assert words in str(error)


def test_memory_that_is_limited_is_named_with_its_limit(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda which: (512 * 2**20, -1))
    said = str(limit_reached("MemoryError: no room"))
    assert "(the limit is 524,288: ulimit -v, in KiB): MemoryError: no room. Raise" in said


def test_another_failure_is_no_limit():
    assert limit_reached(ValueError("shapes differ")) is None


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ...",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "RuntimeError: CUDA error: out of memory",
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/opt/pytorch/c10/cuda/'
        'CUDACachingAllocator.cpp":1131, please report a bug to PyTorch.',
        "RuntimeError: NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "
        '"../c10/cuda/CUDACachingAllocator.cpp":838',
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.00 GB)",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 4 bytes.",
        "MemoryError: ",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_every_known_text_of_missing_memory_is_recognised(text):
    assert is_out_of_memory(text)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "RuntimeError: x INTERNAL ASSERT FAILED at y, please report a bug to PyTorch.",
        "ValueError: the memory bank is empty",
    ],
)
def test_other_errors_are_not_taken_for_missing_memory(text):
    assert not is_out_of_memory(text)
