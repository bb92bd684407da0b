"""The core: parts that own their state and call downwards only, joined by composition.

`engine` has the order of steps and knows all parts; none of them knows the engine. How they work
together: docs/project/code.md.
"""
