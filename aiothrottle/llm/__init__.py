"""Options for clients of language models: what a request costs in tokens, and what it did cost.

``ThrottledTransport(limiter, **llm.openai())`` charges each request of the API its estimated
tokens, settles them by the `usage` of the response, streamed or not, and retries as the SDK does.
No SDK is imported here: the options read requests and responses.
"""

from aiothrottle.llm.calls import TokenCounter, estimate_tokens, tiktoken_counter
from aiothrottle.llm.options import LLMOptions, anthropic, openai, retry

__all__ = [
    "LLMOptions",
    "TokenCounter",
    "anthropic",
    "estimate_tokens",
    "openai",
    "retry",
    "tiktoken_counter",
]
