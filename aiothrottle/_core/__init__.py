"""The core: parts that own their state and call downwards only, joined by composition.

`engine` has the order of steps and knows all parts; `chain` joins engines. No part below them knows
another part, or uses its private state. How they work together: docs/concepts/how-it-works.md.
"""
