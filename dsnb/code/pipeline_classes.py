"""The classes restored with a pipeline, and the conversion of elements that another copy of the pipeline made.

Restoring a pipeline creates new classes each time. The elements of a recording were made by an earlier copy of the
pipeline, or in another process, but later functions check `isinstance` with the classes of this copy.
"""

from __future__ import annotations

from typing import Any

from dsnb.elements.data_classes import field_names
from dsnb.elements.structure import Structure, StructureMismatch, columns_of, elements_of, local_class_of, structure_of


class PipelineClasses:
    """A pipeline's named tuples and dataclasses, by module and qualified name; empty in the process that defined them.

    An operation that yields elements made elsewhere holds one. All instances restored from one pickle are the same
    object, which holds the classes of that pickle.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[str, str], type] = {}

    def add(self, cls: type) -> None:
        """Add a restored class, if it is a named tuple or a dataclass."""
        if field_names(cls) is not None:
            self._classes[cls.__module__, cls.__qualname__] = cls

    def class_of(self, structure: Structure) -> type:
        """The pipeline's class of that path and those fields, else this process's own."""
        found = self._classes.get(structure.class_path)
        return found if found is not None and field_names(found) == structure.keys else local_class_of(structure)

    def convert_run(self, run: list[Any]) -> list[Any]:
        """The elements of a run, rebuilt with the pipeline's classes if they are instances of other classes."""
        structure = structure_of(run[0])
        if not self._is_foreign(structure):
            return run
        try:
            columns = columns_of(structure, run)
        except StructureMismatch:
            return [self.convert_run([element])[0] for element in run]
        return list(elements_of(structure, iter(columns), len(run), self.class_of))

    def _is_foreign(self, structure: Structure) -> bool:
        if structure.cls is not None and self.class_of(structure) is not structure.cls:
            return True
        return any(map(self._is_foreign, structure.children))
