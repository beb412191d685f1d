"""The classes that came to a worker with a pipeline, for elements that were made by another copy of it.

Each time that a pipeline is restored it comes with classes of its own. What a recording holds was made by an earlier
copy, or in another process, and a function behind it asks `isinstance` by the class that came with this one.
"""

from __future__ import annotations

from typing import Any

from dsnb.elements.data_classes import field_names
from dsnb.elements.structure import Structure, StructureMismatch, columns_of, elements_of, local_class_of, structure_of


class PipelineClasses:
    """Named tuples and dataclasses by where they were defined; empty in the process that a pipeline was written in.

    An operation that hands out elements of others holds one. In a pickle it stands for the classes that the pickle
    brings: all that are restored from one pickle are one object.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[str, str], type] = {}

    def add(self, cls: type) -> None:
        """Learn of a class that has been restored."""
        if field_names(cls) is not None:
            self._classes[cls.__module__, cls.__qualname__] = cls

    def class_of(self, structure: Structure) -> type:
        """The pipeline's class of that description, else this process's own."""
        found = self._classes.get(structure.class_path)
        return found if found is not None and field_names(found) == structure.keys else local_class_of(structure)

    def convert_run(self, run: list[Any]) -> list[Any]:
        """The elements of a run, made anew with the pipeline's classes where they are of others."""
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
