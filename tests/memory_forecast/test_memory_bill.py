"""The bill: it adds up, it knows its limit, and slack grows with what is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.memory_forecast.forecast import AllocatorTrial, slack_bytes
from stepscope.memory_forecast.memory_bill import Bill, Item, Limit, host_limit, memory_limits

ITEMS = ("runtime", "activations", "prefetch")
sizes = st.lists(st.integers(0, 2**40), min_size=len(ITEMS), max_size=len(ITEMS))


def bill_of(numbers: list[int], limit_bytes: int) -> Bill:
    items = {name: Item(number, "counted", "") for name, number in zip(ITEMS, numbers, strict=True)}
    return Bill(items, {"host": Limit("physical memory", limit_bytes)})


@given(sizes, st.integers(1, 2**44))
def test_the_items_add_up_and_it_fits_when_the_limit_holds_them(numbers, limit_bytes):
    bill = bill_of(numbers, limit_bytes)
    assert bill.total_bytes == sum(numbers)
    assert bill.fits == (sum(numbers) <= limit_bytes)


@pytest.mark.parametrize(
    ("name", "item", "pool", "limit_bytes"),
    [
        ("activations", Item(90, "counted", "", "device"), "device", 80),
        ("prefetch", Item(50, "counted", ""), "shared memory", 40),  # batches of workers
    ],
)
def test_the_fullest_pool_binds(name, item, pool, limit_bytes):
    items = {name: Item(10, "counted", "") for name in ITEMS}
    limits = {"host": Limit("physical memory", 1000), pool: Limit(pool, limit_bytes)}
    bill = Bill({**items, name: item}, limits)
    assert bill.binding == pool
    assert not bill.fits


def test_a_limit_of_nothing_binds_and_is_not_divided_by():
    bill = bill_of([1] * len(ITEMS), 0)
    assert not bill.fits
    assert bill.filled_share("host") > 1
    assert bill_of([0] * len(ITEMS), 0).filled_share("host") == 0


def test_the_smallest_limit_of_the_host_binds():
    assert host_limit(2**20) == Limit("--memory-limit", 2**20)
    assert host_limit(None).of in ("physical memory", "control group")


@given(st.integers(0, 2**40), st.integers(-(2**30), 2**30), st.integers(0, 2**40))
def test_slack_is_never_below_nothing_and_never_falls_with_what_is_kept(kept, excess, more):
    trial = AllocatorTrial(kept, excess)
    assert 0 <= slack_bytes(trial, kept) <= slack_bytes(trial, kept + more)


def test_a_device_has_a_limit_of_its_own_unless_it_shares_the_hosts_memory():
    device = Limit("memory of cuda", 2**30)
    asked = Limit("--memory-limit", 2**31)
    assert memory_limits(2**31, 0, device) == {"host": asked, "device": device}
    assert memory_limits(2**31, 0, device, unified=True) == {"unified": device}
    assert memory_limits(2**29, 0, device, unified=True)["unified"].of == "--memory-limit"
    assert memory_limits(2**31, 0) == {"host": asked}
