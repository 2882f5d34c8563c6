"""Chooses, for each run of windows, how slices are combined into them.

By filter if the group's cells are split by signature, otherwise sparsely or densely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from millpond.arrays import Mask
from millpond.plan.groups.plan import GroupPlan, Measure
from millpond.runtime.windows.closing import Closing
from millpond.runtime.windows.combine import Block, blocks, edges_of, ranges_of
from millpond.runtime.windows.combine_by_filter import SignedBlock, signed_blocks
from millpond.runtime.windows.combine_sparse import SparseBlock, sparse_blocks
from millpond.state.layout.cells import Cells

AnyBlock: TypeAlias = Block | SparseBlock | SignedBlock


def blocks_of(
    group: GroupPlan, run: Sequence[Closing], parts: Sequence[Cells], chosen: Sequence[Mask],
    measures: Sequence[Measure], keys: int,
) -> Iterator[AnyBlock]:  # fmt: skip
    """The cells of the chosen slices for a run of windows and some measures, in blocks; slots are below `keys`."""
    edges = edges_of(run)
    if group.signed:
        return signed_blocks(edges, parts, chosen, measures, keys)
    ids = {measure.id for measure in measures}
    few = sparse_blocks(run, parts, chosen, ids, keys)
    return blocks(edges, ranges_of(parts, edges, chosen), ids, keys) if few is None else few
