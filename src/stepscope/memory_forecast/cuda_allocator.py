"""Simulate torch's caching allocator on a CUDA device for the tensors of a step.

The allocator splits segments into blocks for tensors and keeps free segments, so it reserves more
than the largest sum of tensors. The rules (c10/cuda/CUDACachingAllocator):

    a tensor of at most    is cut from a segment of         a remainder becomes a block from
    1 MiB                  2 MiB                            512 B
    10 MiB                 20 MiB                           1 MiB
    more                   its size, in steps of 2 MiB      1 MiB

Sizes are rounded up to 512 B. The smallest free block that fits is used, and adjacent free blocks
are merged. PYTORCH_CUDA_ALLOC_CONF, which changes the rules, is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.models.step_tensors import OptimizerMemory, StepLog, trained_bytes

_MIB = 2**20
_ROUND_BYTES = 512
_SMALL_BYTES = _MIB
_SMALL_SEGMENT_BYTES = 2 * _MIB
_MIDDLE_BYTES = 10 * _MIB
_MIDDLE_SEGMENT_BYTES = 20 * _MIB
_LARGE_ROUND_BYTES = 2 * _MIB

# The second step reuses free blocks of the first; a third changes nothing.
_STEPS = 2


@dataclass(eq=False)
class _Piece:
    """A block of a segment, which is the list of its blocks in order."""

    size_bytes: int
    small: bool
    segment: list[_Piece]
    free: bool = True


@dataclass
class CachingAllocator:
    """The bookkeeping of the allocator, without memory."""

    reserved_bytes: int = 0
    _holes: list[_Piece] = field(default_factory=list)

    def take(self, size_bytes: int) -> _Piece:
        """Allocate a tensor, in a free block or in a new segment."""
        size_bytes = _round_up(max(1, size_bytes), _ROUND_BYTES)
        small = size_bytes <= _SMALL_BYTES
        fitting = [h for h in self._holes if h.small == small and h.size_bytes >= size_bytes]
        if fitting:
            piece = min(fitting, key=lambda hole: hole.size_bytes)
            self._holes.remove(piece)
        else:
            if small:
                segment_bytes = _SMALL_SEGMENT_BYTES
            elif size_bytes < _MIDDLE_BYTES:
                segment_bytes = _MIDDLE_SEGMENT_BYTES
            else:
                segment_bytes = _round_up(size_bytes, _LARGE_ROUND_BYTES)
            piece = _Piece(segment_bytes, small, [])
            piece.segment.append(piece)
            self.reserved_bytes += segment_bytes
        piece.free = False
        rest_bytes = piece.size_bytes - size_bytes
        if rest_bytes >= _ROUND_BYTES and (small or rest_bytes > _SMALL_BYTES):
            piece.size_bytes = size_bytes
            rest = _Piece(rest_bytes, small, piece.segment)
            piece.segment.insert(piece.segment.index(piece) + 1, rest)
            self._holes.append(rest)
        return piece

    def give_back(self, piece: _Piece) -> None:
        """Free a block and merge it with adjacent free blocks."""
        at = piece.segment.index(piece)
        for neighbour in piece.segment[max(0, at - 1) : at + 2]:
            if neighbour.free:
                self._holes.remove(neighbour)
                piece.segment.remove(neighbour)
                piece.size_bytes += neighbour.size_bytes
        piece.free = True
        self._holes.append(piece)


def _round_up(size_bytes: int, to_bytes: int) -> int:
    return -(-size_bytes // to_bytes) * to_bytes


def reserved_for(log: StepLog, optimizer: OptimizerMemory) -> int:
    """Return the reserved bytes after some steps like this one."""
    allocator = CachingAllocator()
    # Parameters exist before and after the step.
    standing = [number for number, block in enumerate(log.blocks, 1) if block.kind == "parameters"]
    trained = trained_bytes(log)
    held = {number: allocator.take(log.blocks[number - 1].size_bytes) for number in standing}
    for step in range(_STEPS):
        for event in log.events:
            if event > 0 and event not in standing:
                held[event] = allocator.take(log.blocks[event - 1].size_bytes)
            elif event < 0 and -event in held and -event not in standing:
                allocator.give_back(held.pop(-event))
        if step == 0 and optimizer.state:  # created by the first step, and permanent
            for size_bytes in trained:
                allocator.take(round(size_bytes * optimizer.state))
        if temporary_bytes := optimizer.temporary_bytes(trained):
            allocator.give_back(allocator.take(temporary_bytes))
        for number in [number for number in held if number not in standing]:
            allocator.give_back(held.pop(number))
    return allocator.reserved_bytes
