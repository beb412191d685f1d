"""The methods of `Dataset` that make elements of several elements, and the reverse.

By the same rules as the other methods (`pipeline/transformations`): tf.data's names, arguments and meaning.
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
    """A number of rows, or several that are used by turns."""
    sizes: tuple[int, ...] = each(_ROWS)(name, value if isinstance(value, Iterable) else [value])
    if not sizes:
        raise InvalidArgumentError(f"`{name}` is empty", hint="pass a number, or several to be used by turns")
    return sizes


class Grouping:
    """Batches, windows and buckets."""

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
        """Lay `batch_size` consecutive elements out as one, each leaf with a first dimension more (as in tf.data).

        `str` becomes a NumPy array of text ("U"), `bytes` one of bytes ("S"); a value that ends in a NUL, which such an
        array would drop, is refused.

        Args:
            batch_size: 1 or more.
            drop_remainder: Leave a last, smaller batch out; then the first dimension is known.
            num_parallel_calls: Taken for the sake of the original; a batch is one copy, which more threads do not speed
                up. To assemble batches while the reader works, put `prefetch` behind.
            deterministic: Taken for the sake of the original.

        Raises:
            InvalidArgumentError: for a batch size below 1. While reading: for an element of another shape, dtype or
                structure than the first of its batch, in its place; the element is left out.

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
        """Lay `batch_size` consecutive elements out as one, their leaves filled up to one size (as in tf.data).

        Args:
            batch_size: 1 or more.
            padded_shapes: Nested as the elements: for each leaf its sizes, as in `[None, 28]`, where None (or -1)
                stands for the largest of the batch. None alone for the largest in all dimensions.
            padding_values: Nested as the elements: for each leaf what to fill up with; or one value for all leaves.
                None for zeros, and "" for text.
            drop_remainder: Leave a last, smaller batch out.

        Raises:
            InvalidArgumentError: for a batch size below 1, or shapes and values that do not go with the elements; here
                if the element spec tells, else while reading, in the element's place, as for an element that is larger
                than `padded_shapes` says.

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
        """Cut each element along the first dimension of its leaves into elements (as in tf.data).

        Raises:
            InvalidArgumentError: for leaves without a dimension; here if the element spec tells, else while reading, as
                for leaves of different lengths.

        Example:
            >>> from dsnb.pipeline.dataset import Dataset
            >>> [int(x) for x in Dataset.range(5).batch(2).unbatch()]
            [0, 1, 2, 3, 4]
        """
        self._check_rows("unbatch")
        return self._derived(Unbatch(inputs=(self.operation,)))

    @checked(batch_size=_batch_sizes)
    def rebatch(self, batch_size: int | Iterable[int], drop_remainder: bool = False) -> Dataset:
        """Cut and join batches to another size, as `unbatch().batch(n)` would, by views and few copies (as in tf.data).

        Args:
            batch_size: 1 or more rows; several such numbers are used by turns.
            drop_remainder: Leave a last, smaller batch out.

        Raises:
            InvalidArgumentError: for a size below 1, or leaves without a dimension; the latter here if the element spec
                tells, else while reading, as for batches whose rows differ from those of the first.

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
        """Make datasets of `size` consecutive elements the elements (as in tf.data).

        Of tuples and dicts each leaf is a dataset of its own, nested as the elements are. A window is read in the
        pipeline that makes it: put `flat_map` or `interleave` behind.

        Args:
            size: Elements of a window, 1 or more; the last windows may have fewer.
            shift: How far the next window begins behind this one; None means `size`, so that windows do not overlap.
            stride: How far apart the elements of a window are.
            drop_remainder: Leave windows out that have fewer than `size` elements.

        Raises:
            InvalidArgumentError: for numbers below 1.

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
        """Gather elements of one key into windows, and put what a function makes of each window one after the other.

        A window is handed on when it is full; at the end, those that are not, by their keys in order (as in tf.data).

        Args:
            key_func: Gets an element as in `map`, returns its key, a whole number.
            reduce_func: Gets a key and a Dataset of up to `window_size` elements of that key; returns a Dataset.
            window_size: 1 or more elements.
            window_size_func: Instead of `window_size`: gets a key, returns the size of its windows.

        Raises:
            InvalidArgumentError: for a size below 1, or both or none of the two. While reading, in an element's place,
                for a key that is no whole number.

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
        """Batch elements of similar length, so that little has to be filled up (as in tf.data).

        Args:
            element_length_func: Gets an element as in `map`, returns its length, a whole number.
            bucket_boundaries: Rising; bucket k holds lengths from boundary k - 1 up to, but without, boundary k.
            bucket_batch_sizes: One for each bucket: one more than boundaries.
            padded_shapes: As in `padded_batch`.
            padding_values: As in `padded_batch`.
            pad_to_bucket_boundary: Fill up to the largest length of the bucket, not of the batch; elements beyond the
                last boundary are refused.
            no_padding: Batch as `batch` does.
            drop_remainder: Leave last, smaller batches out.

        Raises:
            InvalidArgumentError: for boundaries that do not rise, or another number of batch sizes than of buckets.

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
