"""The methods of `Dataset` that combine several elements into one, or divide one into several.

Like the other methods (`pipeline/transformations`), they have tf.data's names, arguments and meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dsnb.arguments import anything, checked, each, function, function_of, integer, optional
from dsnb.elements.structure import flatten
from dsnb.errors import InvalidArgumentError
from dsnb.pipeline.engine.padding import Padding
from dsnb.pipeline.operation import Operation
from dsnb.pipeline.operations.batch import Batch
from dsnb.pipeline.operations.bucket_by_sequence_length import BucketBySequenceLength, Buckets
from dsnb.pipeline.operations.group_by_window import GroupByWindow
from dsnb.pipeline.operations.padded_batch import PaddedBatch
from dsnb.pipeline.operations.rebatch import Rebatch
from dsnb.pipeline.operations.unbatch import Unbatch
from dsnb.pipeline.operations.window import Window
from dsnb.pipeline.validate import called_with_elements, parallel_calls

if TYPE_CHECKING:
    from dsnb.pipeline.dataset import Dataset


_ROWS = integer(1)


def _batch_sizes(name: str, value: Any) -> tuple[int, ...]:
    """Check and return the numbers of rows, which are used by turns."""
    sizes: tuple[int, ...] = each(_ROWS)(name, value if isinstance(value, Iterable) else [value])
    if not sizes:
        raise InvalidArgumentError(f"`{name}` is empty", hint="pass a number, or several to be used by turns")
    return sizes


class Grouping:
    """The methods for batches, windows and buckets."""

    operation: Operation

    def _derived(self, operation: Operation) -> Dataset:
        raise NotImplementedError

    @checked(batch_size=_ROWS, num_parallel_calls=parallel_calls)
    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Lay out `batch_size` consecutive elements as one, each leaf with one more dimension (as in tf.data).

        `str` becomes a NumPy array of text ("U"), `bytes` an array of bytes ("S"). A value that ends in a NUL is
        refused, because such an array would drop the NUL.

        Args:
            batch_size: 1 or more.
            drop_remainder: Drop a smaller last batch; then the size of the first dimension is known.
            num_parallel_calls: Accepted for compatibility with tf.data and ignored: a batch is one copy, which threads
                do not speed up. To make batches while the reader works, use `prefetch` afterwards.
            deterministic: Accepted for compatibility with tf.data and ignored.

        Raises:
            InvalidArgumentError: the batch size is below 1. While reading: an element differs from the first of its
                batch in shape, dtype or structure; the element is dropped and the error raised in its place.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> list(Dataset.range(5).batch(2))
            [array([0, 1]), array([2, 3]), array([4])]
        """
        return self._derived(Batch(inputs=(self.operation,), size=batch_size, drop_remainder=drop_remainder))

    @checked(batch_size=_ROWS, padded_shapes=anything, padding_values=anything)
    def padded_batch(
        self, batch_size: int, padded_shapes: Any = None, padding_values: Any = None, drop_remainder: bool = False
    ) -> Dataset:
        """Lay out `batch_size` consecutive elements as one, their leaves padded to one size (as in tf.data).

        Args:
            batch_size: 1 or more.
            padded_shapes: Nested like the elements: the sizes of each leaf, as in `[None, 28]`, where None (or -1)
                means the largest size in the batch. None alone means that for all dimensions.
            padding_values: Nested like the elements: the fill value of each leaf; or one value for all leaves. None for
                zeros, and "" for text.
            drop_remainder: Drop a smaller last batch.

        Raises:
            InvalidArgumentError: the batch size is below 1, or shapes or values do not fit the elements; raised here if
                the element spec is known, else while reading, in place of the element. Also while reading, for an
                element larger than `padded_shapes`.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> import numpy as np
            >>> rows = Dataset.range(1, 4).map(lambda n: np.full(n, n))
            >>> [batch.tolist() for batch in rows.padded_batch(2)]
            [[[1, 0], [2, 2]], [[3, 3, 3]]]
        """
        operation = PaddedBatch(
            inputs=(self.operation,),
            size=batch_size,
            drop_remainder=drop_remainder,
            padding=Padding(shapes=padded_shapes, values=padding_values),
        )
        operation.check()
        return self._derived(operation)

    @checked()
    def unbatch(self) -> Dataset:
        """Cut each element into elements along the first dimension of its leaves (as in tf.data).

        Raises:
            InvalidArgumentError: a leaf has no dimensions; raised here if the element spec is known, else while
                reading. Also while reading, for leaves of different lengths.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(5).batch(2).unbatch()]
            [0, 1, 2, 3, 4]
        """
        self._check_rows("unbatch")
        return self._derived(Unbatch(inputs=(self.operation,)))

    @checked(batch_size=_batch_sizes)
    def rebatch(self, batch_size: int | Iterable[int], drop_remainder: bool = False) -> Dataset:
        """Cut and join batches to another size, like `unbatch().batch(n)` but with few copies (as in tf.data).

        Args:
            batch_size: 1 or more rows; several numbers are used by turns.
            drop_remainder: Drop a smaller last batch.

        Raises:
            InvalidArgumentError: a size is below 1, or a leaf has no dimensions; the latter is raised here if the
                element spec is known, else while reading. Also while reading, for batches whose rows differ from those
                of the first.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> list(Dataset.range(8).batch(4).rebatch([2, 1]))
            [array([0, 1]), array([2]), array([3, 4]), array([5]), array([6, 7])]
        """
        assert isinstance(batch_size, tuple)  # by its rule
        self._check_rows("rebatch")
        return self._derived(Rebatch(inputs=(self.operation,), sizes=batch_size, drop_remainder=drop_remainder))

    @checked(size=integer(1), shift=optional(integer(1)), stride=integer(1))
    def window(self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> Dataset:
        """Make elements that are datasets of `size` consecutive elements (as in tf.data).

        For tuples and dicts, each leaf is a dataset of its own, nested like the elements. A window must be read in the
        pipeline that makes it: use `flat_map` or `interleave` afterwards.

        Args:
            size: Elements of a window, 1 or more; the last windows may have fewer.
            shift: How many elements after this window's start the next one starts; None means `size`, so that windows
                do not overlap.
            stride: Distance between the elements of a window.
            drop_remainder: Drop windows with fewer than `size` elements.

        Raises:
            InvalidArgumentError: a number is below 1.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> windows = Dataset.range(7).window(3, shift=2, stride=2, drop_remainder=True)
            >>> list(windows.flat_map(lambda window: window.batch(3)))
            [array([0, 2, 4]), array([2, 4, 6])]
        """
        operation = Window(
            inputs=(self.operation,),
            size=size,
            shift=size if shift is None else shift,
            stride=stride,
            drop_remainder=drop_remainder,
        )
        return self._derived(operation)

    @checked(
        key_func=function,
        reduce_func=function_of("a key", "a Dataset"),
        window_size=optional(_ROWS),
        window_size_func=optional(function_of("a key")),
    )
    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[[Any, Dataset], Dataset],
        window_size: int | None = None,
        window_size_func: Callable[[Any], Any] | None = None,
    ) -> Dataset:
        """Gather elements with the same key into windows, and read the datasets that a function makes of them in turn.

        A window is passed on when it is full; at the end, incomplete windows follow in the order of their keys (as in
        tf.data).

        Args:
            key_func: Takes an element as in `map`; returns its key, a whole number.
            reduce_func: Takes a key and a Dataset of up to `window_size` elements with that key; returns a Dataset.
            window_size: 1 or more elements.
            window_size_func: Instead of `window_size`: takes a key and returns the size of its windows.

        Raises:
            InvalidArgumentError: the size is below 1, or both or none of the two are given. While reading, in place of
                an element: its key is not a whole number.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> ds = Dataset.range(10).group_by_window(lambda x: x % 2, lambda key, window: window.batch(3), 3)
            >>> list(ds)
            [array([0, 2, 4]), array([1, 3, 5]), array([6, 8]), array([7, 9])]
        """
        size = window_size if window_size is not None else window_size_func
        if size is None or (window_size is not None and window_size_func is not None):
            raise InvalidArgumentError(
                "Must pass either `window_size` or `window_size_func`, but not both",
                hint="window_size=10, or a function that gives the size for a key",
            )
        operation = GroupByWindow(
            inputs=(self.operation,),
            key=called_with_elements("key_func", key_func, self.operation),
            reduce=reduce_func,
            window_size=size,
        )
        return self._derived(operation)

    @checked(
        element_length_func=function,
        bucket_boundaries=each(_ROWS),
        bucket_batch_sizes=each(_ROWS),
        padded_shapes=anything,
        padding_values=anything,
    )
    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Iterable[int],
        bucket_batch_sizes: Iterable[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Batch elements of similar length, so that little padding is needed (as in tf.data).

        Args:
            element_length_func: Takes an element as in `map`; returns its length, a whole number.
            bucket_boundaries: Ascending; bucket k contains lengths from boundary k - 1 to boundary k, exclusive.
            bucket_batch_sizes: One for each bucket: one more than there are boundaries.
            padded_shapes: As in `padded_batch`.
            padding_values: As in `padded_batch`.
            pad_to_bucket_boundary: Pad to the largest length of the bucket instead of the batch; elements beyond the
                last boundary are refused.
            no_padding: Batch like `batch`, without padding.
            drop_remainder: Drop smaller last batches.

        Raises:
            InvalidArgumentError: the boundaries are not ascending, or the number of batch sizes differs from that of
                buckets.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> import numpy as np
            >>> rows = Dataset.from_tensor_slices([1, 5, 2, 4]).map(lambda n: np.full(n, n))
            >>> [batch.tolist() for batch in rows.bucket_by_sequence_length(len, [3], [2, 2])]
            [[[1, 0], [2, 2]], [[5, 5, 5, 5, 5], [4, 4, 4, 4, 0]]]
        """
        buckets = Buckets(
            length=called_with_elements("element_length_func", element_length_func, self.operation),
            boundaries=tuple(bucket_boundaries),
            sizes=tuple(bucket_batch_sizes),
            padding=None if no_padding else Padding(shapes=padded_shapes, values=padding_values),
            pad_to_boundary=pad_to_bucket_boundary and not no_padding,
            drop_remainder=drop_remainder,
        )
        buckets.check()
        operation = BucketBySequenceLength(
            inputs=(self.operation,),
            key=buckets.bucket_of,
            reduce=buckets.batch,
            window_size=buckets.size,
            buckets=buckets,
        )
        return self._derived(operation)

    def _check_rows(self, name: str) -> None:
        spec = self.operation.element_spec
        if spec is not None and any(not leaf.shape for leaf in flatten(spec)):
            raise InvalidArgumentError(
                f"{name}: elements of the spec {spec} have a leaf without dimensions: there are no rows to cut",
                hint=f"leave `{name}` out, or `batch` first",
            )
