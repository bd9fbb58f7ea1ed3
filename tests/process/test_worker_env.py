"""What workers see of the driver's environment: values in, values out."""

from __future__ import annotations

import os
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_cluster.errors import ConfigError
from rl_cluster.ground.secrets import looks_secret, mask_text, mask_value, mask_word, masked
from rl_cluster.process.worker_env import forwarded_env, omp_threads, split_early
from rl_cluster.schema import EnvSpec

ALLOWED = """
NCCL_DEBUG HF_HOME CUDA_DEVICE_ORDER TORCH_HOME PYTORCH_CUDA_ALLOC_CONF VLLM_USE_V1 OMP_NUM_THREADS MKL_NUM_THREADS WANDB_PROJECT
TRITON_CACHE_DIR XLA_FLAGS TRANSFORMERS_OFFLINE TOKENIZERS_PARALLELISM GLOO_SOCKET_IFNAME UCX_TLS FI_PROVIDER NVTE_DEBUG  MEGATRON_X
HTTP_PROXY HTTPS_PROXY NO_PROXY https_proxy
"""

NOT_ALLOWED = """
PATH HOME USER EDITOR MY_VARIABLE LD_LIBRARY_PATH LD_PRELOAD PYTHONPATH VIRTUAL_ENV UV_PROJECT_ENVIRONMENT CUDA_VISIBLE_DEVICES
SLURM_JOB_ID SLURMD_NODENAME SLURM_PROCID PMI_RANK PMIX_NAMESPACE PMI2_X OMPI_COMM_WORLD_RANK OMPI_MCA_btl I_MPI_ROOT MPI_LOCALNRANKS
RAY_ADDRESS RAY_JOB_CONFIG_JSON_ENV_VAR RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID KUBERNETES_SERVICE_HOST
HF_TOKEN WANDB_API_KEY VLLM_API_KEY AWS_SECRET_ACCESS_KEY MLFLOW_TRACKING_PASSWORD NCCL_SECRET TORCH_CREDENTIALS
"""


@pytest.mark.parametrize(
    "name",
    ALLOWED.split(),
)
def test_the_allow_list_forwards(name: str) -> None:
    """Variables of the libraries that workers run are forwarded without being asked for."""
    assert forwarded_env({name: "value"}, EnvSpec()).values == {name: "value"}


@pytest.mark.parametrize(
    "name",
    NOT_ALLOWED.split(),
)
def test_what_is_not_on_the_list_is_not_forwarded(name: str) -> None:
    """The launcher's and Ray's variables, ranks, device lists, secrets, and everything unknown stay with the driver."""
    assert forwarded_env({name: "s3cret-value"}, EnvSpec()).values == {}


@pytest.mark.parametrize(
    "value",
    [
        "http://user:pw@proxy:3128",
        "https://0123456789abcdef0123@proxy",
        "hf_0123456789abcdefABCDEF",
        "sk-0123456789abcdefghij",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
def test_a_secret_in_the_value_of_an_allowed_variable_is_not_forwarded(value: str) -> None:
    """A login in a URL, or a well-known kind of token, makes a secret of any variable, and the reason is said."""
    env = forwarded_env({"HTTPS_PROXY": value}, EnvSpec())
    assert env.values == {}
    assert env.withheld == {"HTTPS_PROXY": "looks like a secret; name it exactly in env.forward to forward it"}


def test_a_group_gets_its_own_values_only_and_nothing_is_changed() -> None:
    """Group A built with X=1, then group B without: B has no X, and no dict of the caller's is changed."""
    environ = {"NCCL_DEBUG": "INFO", "PATH": "/bin"}
    spec_a, spec_b = EnvSpec(set={"X": "1"}), EnvSpec()
    before = dict(os.environ)
    a = forwarded_env(MappingProxyType(environ), spec_a)
    b = forwarded_env(MappingProxyType(environ), spec_b)
    assert a.values == {"NCCL_DEBUG": "INFO", "X": "1"}
    assert b.values == {"NCCL_DEBUG": "INFO"}
    assert environ == {"NCCL_DEBUG": "INFO", "PATH": "/bin"}
    assert (spec_a.set, spec_b.set) == ({"X": "1"}, {})
    assert dict(os.environ) == before


def test_forward_extends_by_name_and_by_prefix_and_set_wins() -> None:
    """env.forward takes names and NAME_* prefixes, env.set overrides both, and each value says where it is from."""
    environ = {"MYLIB_A": "1", "MYLIB_B": "2", "OTHER": "3", "NCCL_DEBUG": "WARN", "HOME": "/root"}
    env = forwarded_env(environ, EnvSpec(forward=["MYLIB_*", "OTHER", "ABSENT"], set={"NCCL_DEBUG": "INFO", "MYLIB_B": "20"}))
    assert env.values == {"MYLIB_A": "1", "MYLIB_B": "20", "OTHER": "3", "NCCL_DEBUG": "INFO"}
    assert env.origins == {"MYLIB_A": "env.forward", "OTHER": "env.forward", "NCCL_DEBUG": "env.set", "MYLIB_B": "env.set"}
    assert env.withheld == {"ABSENT": "is not set in the driver's environment"}
    assert env.summary() == (
        "env.forward: MYLIB_A, OTHER; env.set: NCCL_DEBUG, MYLIB_B; withheld: ABSENT (is not set in the driver's environment)"
    )


def test_a_secret_is_forwarded_only_where_it_is_named_exactly() -> None:
    """A prefix never forwards a secret; its exact name does, and so does env.set."""
    environ = {"MYLIB_TOKEN": "abc", "HF_TOKEN": "def", "MYLIB_PATH": "/x"}
    by_prefix = forwarded_env(environ, EnvSpec(forward=["MYLIB_*"]))
    assert by_prefix.values == {"MYLIB_PATH": "/x"}
    assert set(by_prefix.withheld) == {"MYLIB_TOKEN", "HF_TOKEN"}
    by_name = forwarded_env(environ, EnvSpec(forward=["HF_TOKEN"], set={"WANDB_API_KEY": "ghi"}))
    assert by_name.values == {"HF_TOKEN": "def", "WANDB_API_KEY": "ghi"}


def test_a_variable_of_the_launcher_is_forwarded_only_where_it_is_named_exactly() -> None:
    """SLURM_JOB_ID may be wanted for a run's name: its exact name forwards it, and none of its neighbours."""
    env = forwarded_env({"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "x"}, EnvSpec(forward=["SLURM_JOB_ID"]))
    assert env.values == {"SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("forward", "sets", "problem"),
    [
        pytest.param(
            ["SLURM_PROCID"],
            {},
            "env.forward: must not hold a rank variable, each worker gets its own, got SLURM_PROCID. Fix: remove it",
            id="forward-launchers-rank",
        ),
        pytest.param(
            [],
            {"CUDA_VISIBLE_DEVICES": "0"},
            "env.set: must not hold a device list, Ray gives each worker its own, got CUDA_VISIBLE_DEVICES. Fix: remove it",
            id="set-devices",
        ),
        pytest.param(
            [],
            {"RAY_DEDUP_LOGS": "0"},
            "env.set: must not hold a variable of Ray's, got RAY_DEDUP_LOGS. Fix: set it where Ray is started",
            id="set-ray",
        ),
        pytest.param(
            ["SLURM_*"],
            {},
            "env.forward: must not hold all variables of a launcher or of Ray, got SLURM_*. Fix: name the ones you need",
            id="all-of-the-launcher",
        ),
        pytest.param(
            ["RAY_*"],
            {},
            "env.forward: must not hold all variables of a launcher or of Ray, got RAY_*. Fix: name the ones you need",
            id="all-of-ray",
        ),
        pytest.param(
            ["A*B"],
            {},
            "env.forward: must be a name, or a prefix with one * at its end, got 'A*B'. Fix: e.g. MYLIB_*",
            id="star-in-the-middle",
        ),
    ],
)
def test_what_a_user_may_not_ask_for_is_a_config_error_with_a_fix(forward: list[str], sets: dict[str, str], problem: str) -> None:
    """Rank variables, device lists and Ray's variables are given to each worker; asking for them is an error with a fix."""
    with pytest.raises(ConfigError) as caught:
        forwarded_env({}, EnvSpec(forward=forward, set=sets))
    assert list(caught.value.problems) == [problem]


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"])
@pytest.mark.parametrize("key", ["set", "forward"])
def test_a_rank_variable_from_the_user_is_a_config_error(name: str, key: str) -> None:
    """Each worker gets its own rank variables: a user's value is refused by name, however it is given."""
    with pytest.raises(ConfigError, match=rf"rank variable|layout itself sets.*{name}"):
        forwarded_env({name: "0"}, EnvSpec(set={name: "0"}) if key == "set" else EnvSpec(forward=[name]))


def test_all_problems_are_said_at_once() -> None:
    """One error lists every wrong name, so that a user fixes the config once."""
    with pytest.raises(ConfigError) as caught:
        forwarded_env({}, EnvSpec(forward=["SLURM_PROCID", "ok"], set={"PMI_RANK": "8", "GROUP_RANK": "1"}))
    assert [problem.split(", got ")[1] for problem in caught.value.problems] == [
        "SLURM_PROCID. Fix: remove it",
        "PMI_RANK. Fix: remove it",
        "GROUP_RANK. Fix: remove it",
    ]


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHASHSEED", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LANG", "LC_ALL"]
)
def test_what_a_process_reads_at_its_start_is_early(name: str) -> None:
    """The loader's, the allocator's and the interpreter's variables must be there before the process starts."""
    assert split_early({name: "x", "NCCL_DEBUG": "INFO"}) == ({name: "x"}, {"NCCL_DEBUG": "INFO"})


@pytest.mark.parametrize("name", ["HF_TOKEN", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_MODULE_LOADING", "PYTHON_API_TOKEN"])
def test_everything_else_is_late(name: str) -> None:
    """Secrets above all, and what libraries read when they are imported, travel to the running process."""
    assert split_early({name: "x"}) == ({}, {name: "x"})


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        pytest.param("PYTHONPATH", "https://user:pw@host/x", "https://***@host/x", id="login-in-a-url"),
        pytest.param("LD_AUTH_TOKEN", "s3cret", "***", id="secret-name"),
    ],
)
def test_an_early_secret_is_a_config_error_that_does_not_show_it(name: str, value: str, shown: str) -> None:
    """What must exist before the process starts can be read by others, so a secret there is refused, by name and masked."""
    with pytest.raises(ConfigError) as caught:
        split_early({name: value})
    assert str(caught.value) == (
        f"env: {name} must exist before a worker starts, so it is readable on a command line and must hold no secret, got {shown}. "
        "Fix: take the secret out of it, or choose another name"
    )


@pytest.mark.parametrize(
    ("environ", "cpus", "threads"),
    [
        pytest.param({}, 8, "8", id="its-cpus"),
        pytest.param({}, 2.9, "2", id="rounded-down"),
        pytest.param({}, 0, "1", id="at-least-one"),
        pytest.param({}, 0.5, "1", id="a-part-of-a-cpu"),
        pytest.param({"OMP_NUM_THREADS": "3"}, 8, "3", id="the-users-value-wins"),
        pytest.param({"OMP_NUM_THREADS": "4,2"}, 8, "4,2", id="nested-levels-are-kept"),
        pytest.param({"OMP_NUM_THREADS": ""}, 8, "8", id="empty-is-none"),
    ],
)
def test_omp_threads(environ: dict[str, str], cpus: float, threads: str) -> None:
    """OMP_NUM_THREADS is the worker's CPUs, at least 1, unless the user says it."""
    assert omp_threads(environ, cpus) == threads


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        pytest.param("HF_TOKEN", "abc", "***", id="token"),
        pytest.param("wandb_api_key", "abc", "***", id="lower-case"),
        pytest.param("AWS_SECRET_ACCESS_KEY", "abc", "***", id="secret-key"),
        pytest.param("MYSECRETS", "abc", "***", id="inside-a-word"),
        pytest.param("DB_PWD", "abc", "***", id="pwd"),
        pytest.param("PWD", "/work", "/work", id="working-directory"),
        pytest.param("TOKENIZERS_PARALLELISM", "true-ish", "true-ish", id="tokenizers-is-no-token"),
        pytest.param("VLLM_MAX_NUM_BATCHED_TOKENS", "8192", "8192", id="a-count-of-tokens"),
        pytest.param("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", "1", id="a-switch-is-no-secret"),
        pytest.param("VLLM_MONKEY_PATCH", "x.y", "x.y", id="monkey-is-no-key"),
        pytest.param("KEYBOARD", "us", "us", id="keyboard-is-no-key"),
        pytest.param("HTTP_PROXY", "http://u:p@proxy:1", "http://***@proxy:1", id="login-in-a-url"),
        pytest.param("NCCL_X", "hf_0123456789abcdefABCDEF", "***", id="token-by-its-value"),
        pytest.param("UV_INDEX_INTERNAL_PASSWORD", "u://a:b@c", "u://***@c", id="only-the-login-of-a-url"),
    ],
)
def test_what_is_shown_of_a_value(name: str, value: str, shown: str) -> None:
    """A secret is shown as ***, a URL without its login, all else as it is."""
    assert mask_value(name, value) == shown
    assert masked({name: value}) == {name: shown}


def test_a_secret_is_shown_nowhere_in_a_records_repr() -> None:
    """The record of an environment can be logged whole."""
    env = forwarded_env({"HF_TOKEN": "planted-secret"}, EnvSpec(forward=["HF_TOKEN"], set={"A": "1"}))
    assert env.values["HF_TOKEN"] == "planted-secret"
    assert "planted-secret" not in f"{env!r} {env} {env.summary()}"
    assert "'A': '1'" in repr(env)


def test_secret_values_are_masked_in_any_text() -> None:
    """A tool's output that repeats a secret is shown without it; values too short to be one do not tear words apart."""
    text = "got planted-secret from https://me:pw@host/simple with ghp_0123456789abcdefghij as a user"
    shown = mask_text(text, env={"HF_TOKEN": "planted-secret", "DB_PWD": "as"})
    assert shown == "got *** from https://***@host/simple with *** as a user"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("env.set.HF_TOKEN=abcd", "env.set.HF_TOKEN=***"),
        ("env.set.HF_TOKEN=ab=cd", "env.set.HF_TOKEN=***"),
        ("env.set={HF_TOKEN: abcd, A: 1}", "env.set={HF_TOKEN: ***, A: 1}"),
        ("worker.kwargs={a: {'api_key': 'x y'}}", "worker.kwargs={a: {'api_key': ***}}"),
        (
            'recipe_overrides=["policy.env.set.HF_TOKEN=abcd","policy.numa.membind=false"]',
            'recipe_overrides=["policy.env.set.HF_TOKEN=***","policy.numa.membind=false"]',
        ),
        ("cluster.label_selector={zone: a}", "cluster.label_selector={zone: a}"),
        ("worker.kwargs={max_tokens: 4096, tokenizer: gpt}", "worker.kwargs={max_tokens: 4096, tokenizer: gpt}"),
        ("python.executable=uv run --with git+https://u:p@h/x", "python.executable=uv run --with git+https://***@h/x"),
    ],
)
def test_secrets_of_a_word_are_masked(word: str, shown: str) -> None:
    """Those of a key, of a group of keys, and of words within a word; what is none stays."""
    assert mask_word(word) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("https://user:pass@word@h/x.whl", "https://***@h/x.whl", id="at-in-the-password"),
        pytest.param("https://u:p/w@h/x", "https://***@h/x", id="slash-in-the-password"),
        pytest.param("https://u:p/w@x@h/x@v1", "https://***@h/x@v1", id="slash-and-at"),
        pytest.param("https://me@corp.com:p/w@h/x", "https://***@h/x", id="address-as-user"),
        pytest.param("https://u:p?w#@h/x", "https://***@h/x", id="query-signs-in-the-password"),
        pytest.param("git+https://me:pw@h/o/r@v1#subdirectory=a", "git+https://***@h/o/r@v1#subdirectory=a", id="pip-at-a-version"),
        pytest.param("redis://:pw@h:6379/0", "redis://***@h:6379/0", id="no-user"),
        pytest.param("http://u:p@[::1]:80/x", "http://***@[::1]:80/x", id="ipv6"),
        pytest.param("https://h/x?token=abc&page=2", "https://h/x?token=***&page=2", id="token"),
        pytest.param("https://h/x?a=1&access_token=a%2Bb#f", "https://h/x?a=1&access_token=***#f", id="access-token"),
        pytest.param(
            "https://h/x?X-Amz-Credential=a&X-Amz-Signature=b&X-Amz-SignedHeaders=host",
            "https://h/x?X-Amz-Credential=***&X-Amz-Signature=***&X-Amz-SignedHeaders=host",
            id="amazon",
        ),
        pytest.param("https://h/x?sv=2020&sig=a%3D", "https://h/x?sv=2020&sig=***", id="azure"),
        pytest.param("https://h/x?apikey=1-2&private_token=x", "https://h/x?apikey=***&private_token=***", id="keys"),
        pytest.param("GET /x?id_token=abc HTTP/1.1", "GET /x?id_token=*** HTTP/1.1", id="without-a-host"),
    ],
)
def test_logins_and_tokens_of_urls_are_masked(text: str, shown: str) -> None:
    """Whatever a password is made of, and wherever in a URL a token stands; the rest can still be read."""
    assert mask_text(f"see '{text}', please") == f"see '{shown}', please"
    assert mask_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "mail to john.doe@example.com",
        "git@github.com:org/repo.git",
        "ssh://git@github.com:22/org/repo@v1",
        "git+ssh://git@github.com/org/repo@v1.0",
        "https://h:8080/@scope/pkg@1.2",
        "https://h/people/john@example.com?to=me@example.com",
        "http://[::1]:8080/pkg@1.2",
        "https://h/x?max_tokens=100&monkey=1&auth=false",
        "https://h/x.whl#sha256=0123456789abcdef",
    ],
)
def test_names_with_an_at_are_shown(text: str) -> None:
    """An address, a user without a password, a port and a version are no secrets."""
    assert mask_text(text) == text


NAMES = st.text("abcdefghij-", min_size=1, max_size=8)
PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/@?#'\""), max_size=12)


@given(user=NAMES, first=PASSWORDS, more=st.lists(PASSWORDS, max_size=3), sign=st.sampled_from("/@?#"), host=NAMES, path=NAMES)
def test_of_a_login_nothing_is_shown(user: str, first: str, more: list[str], sign: str, host: str, path: str) -> None:
    """Neither user nor password, however many signs with a meaning of their own are in it; the host, the path and its version are."""
    password = sign.join([f"x{first}", *more])
    assert mask_text(f"git+https://{user}:{password}@{host}/{path}@1.0") == f"git+https://***@{host}/{path}@1.0"


@given(user=NAMES, host=NAMES, path=NAMES, port=st.none() | st.integers(0, 65535))
def test_what_holds_no_secret_is_shown_whole(user: str, host: str, path: str, port: int | None) -> None:
    """A user alone, with or without a port behind the host, and a version behind the path."""
    where = host if port is None else f"{host}:{port}"
    for text in (f"ssh://{user}@{where}/{path}@1.0", f"https://{where}/{path}@1.0", f"{user}@{host}:{path}", f"{user}@{host}.com"):
        assert mask_text(text) == text


def test_a_name_alone_can_be_asked_about() -> None:
    """Without a value the name decides."""
    assert looks_secret("HF_TOKEN")
    assert not looks_secret("HF_HOME")
