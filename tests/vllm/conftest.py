"""vLLM lives in an environment of its own (`make test-vllm`); elsewhere these tests are not collected."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]
