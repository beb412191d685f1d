"""The same words everywhere: see `dsnb.monitor.words`."""

from dsnb.monitor.words import by_number, clock, count, duration, plural, rate, sentence, share, size

__all__ = ["by_number", "clock", "count", "duration", "plural", "rate", "sentence", "share", "size"]
