"""Django settings. The environment is decoded here and nowhere else.

Embedded (the default): SQLite, hints by UNIX datagrams, web and scheduler as two processes of one command (`make up`).
Production: DATABASE_URL=postgres://… and REDIS_URL=redis://…, web and scheduler as two services.
"""

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from appliance import VERSION, budgets, database, directory, environment, flags, heads
from appliance.running import web_user
from scheduler.core.policies import POLICIES
from web.logs import choose as logs

BASE_DIR = Path(__file__).resolve().parent.parent
HOME = Path(environment.text("GPUSHARE_HOME", str(BASE_DIR / "var"))).resolve()
HOME.mkdir(mode=0o750, parents=True, exist_ok=True)
if HOME.stat().st_uid == os.geteuid():  # a web service of another user reads it by its group
    HOME.chmod(HOME.stat().st_mode & 0o7770)


def _secret_key() -> str:
    """The key given, or one made once and kept where only its owner can read it."""
    if key := environment.text("GPUSHARE_SECRET_KEY"):
        return key
    path = HOME / "secret-key"
    if path.exists() and not path.read_text():
        path.unlink()  # left by a start that was killed, or a full disk: nothing was ever signed with it
    if not path.exists():
        # Whole or not at all; and of two that start at once, both take the key of the first.
        partial = HOME / f"secret-key.{os.getpid()}"
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(50))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return path.read_text()


def _digest(*paths: Path) -> str:
    """Of the content of these files and folders, in short."""
    digest = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else (path,):
            if file.is_file():
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


SECRET_KEY = _secret_key()
# Of before a change of key: they still verify sessions and audit.
SECRET_KEY_FALLBACKS = environment.words("GPUSHARE_OLD_SECRET_KEYS")
DEBUG = False
ALLOWED_HOSTS = environment.words("GPUSHARE_ALLOWED_HOSTS", "localhost 127.0.0.1 [::1]")
# Where people reach these pages, for links in what is sent, and for a proxy that speaks TLS: its pages are ours.
GPUSHARE_PUBLIC_URL = environment.address("GPUSHARE_PUBLIC_URL")
CSRF_TRUSTED_ORIGINS = ["{0.scheme}://{0.netloc}".format(urlsplit(GPUSHARE_PUBLIC_URL))] if GPUSHARE_PUBLIC_URL else []

INSTALLED_APPS = [
    "appliance",  # first: of two commands of one name that of the first app is used
    "web.adminsite.Config",  # django.contrib.admin
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "web",
    "scheduler",
]

MIDDLEWARE = [
    "web.http.hosts.refuse_unknown_hosts",
    "django.middleware.security.SecurityMiddleware",
    "web.http.middleware.remember_origin",
    "web.http.middleware.refuse_bad_text",
    "web.http.security.refuse_other_sites",
    "web.http.zone.show_local_times",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "web.http.middleware.keep_budgets",
    "web.http.middleware.redirect_signed_out",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "web.http.security.content_security_policy",
]

ROOT_URLCONF = "appliance.urls"
ASGI_APPLICATION = "appliance.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

_DATABASE = environment.text("DATABASE_URL") or f"sqlite:///{database.place(HOME)}"
DATABASES = {"default": dj_database_url.parse(_DATABASE, conn_max_age=None, conn_health_checks=True)}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["ENGINE"] = "appliance.sqlite_by_owner"
    # IMMEDIATE takes the write lock at the start of a transaction, so that it can wait for it: a transaction that
    # upgrades half-way fails at once with "database is locked" instead. Tests use a file too: in memory, SQLite's
    # shared cache locks tables against other threads without waiting.
    DATABASES["default"]["TEST"] = {"NAME": str(HOME / f"test-{os.getpid()}.sqlite3")}
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }

if DATABASES["default"]["ENGINE"].endswith("postgresql"):
    # A host that is cut off from the server has to notice: TCP alone would wait for a quarter of an hour. Seconds; the
    # last, milliseconds.
    _CUT_OFF = {"connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3,
                "tcp_user_timeout": 10_000}  # fmt: skip
    DATABASES["default"]["OPTIONS"] = {**_CUT_OFF, **DATABASES["default"].get("OPTIONS", {})}

REDIS_URL = environment.text("REDIS_URL")
# Whoever listens asks Redis to answer within 5 s, message or not; Redis' client would give up at that very moment.
_REDIS = {"address": REDIS_URL, "socket_timeout": 15}
CHANNEL_LAYERS = {
    "default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": [_REDIS]}}
    if REDIS_URL
    else {"BACKEND": "appliance.datagrams.Datagrams", "CONFIG": {"folder": HOME / "hints"}}
}

CACHES = {  # requests and failures are counted in it: all web processes together
    "default": {"BACKEND": "web.http.throttle_cache.Counts", "LOCATION": REDIS_URL}
    if REDIS_URL
    # Large, or strangers could have their failures forgotten by asking from many addresses.
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 100_000}}
}

AUTHENTICATION_BACKENDS = [
    "web.people.signin.Throttle",
    "web.people.roles.Managers",
    "django.contrib.auth.backends.ModelBackend",
]
if LDAP := directory.ldap(os.environ):
    AUTHENTICATION_BACKENDS.append("web.people.directory.ldap.Backend")
    globals().update(LDAP)
if OIDC := directory.oidc(os.environ):
    INSTALLED_APPS.append("mozilla_django_oidc")
    AUTHENTICATION_BACKENDS.append("web.people.directory.oidc.Backend")
    globals().update(OIDC)
GPUSHARE_GROUPS = directory.group_map(environment.text("GPUSHARE_GROUPS"))
PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [{"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"}]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "dashboard"
LOGOUT_REDIRECT_URL = "login"

EMAIL_HOST = environment.text("GPUSHARE_MAIL_HOST")  # empty: no e-mail
EMAIL_PORT = environment.port("GPUSHARE_MAIL_PORT", 25)
EMAIL_HOST_USER = environment.text("GPUSHARE_MAIL_USER")
EMAIL_HOST_PASSWORD = environment.text("GPUSHARE_MAIL_PASSWORD")
_MAIL_TLS = environment.one_of("GPUSHARE_MAIL_TLS", "none", "starttls", "tls")
EMAIL_USE_TLS, EMAIL_USE_SSL = _MAIL_TLS == "starttls", _MAIL_TLS == "tls"
EMAIL_TIMEOUT = 10  # seconds, for each word with the mail server
DEFAULT_FROM_EMAIL = environment.text("GPUSHARE_MAIL_FROM", f"gpushare@{os.uname().nodename}")

USE_I18N = False  # there is one language and no catalogue
TIME_ZONE = "UTC"
USE_TZ = True

STATICFILES_DIRS = [BASE_DIR / "static", *([vendor] if (vendor := BASE_DIR / ".build" / "vendor").is_dir() else [])]
STATIC_URL = f"static/{_digest(BASE_DIR / 'requirements' / 'run.txt', *STATICFILES_DIRS)}/"  # see appliance/static.py

GPUSHARE_VERSION = VERSION
# Of a node that has joined: its own, with which it seals what happens on it. Empty: the appliance's.
GPUSHARE_AUDIT_KEY = environment.hexadecimal("GPUSHARE_AUDIT_KEY", 64)
# Where nodes that join find the database (host:port) and Redis (a URL), if that is not where it is found here.
GPUSHARE_NODES_DATABASE = environment.text("GPUSHARE_NODES_DATABASE")
GPUSHARE_NODES_REDIS = environment.text("GPUSHARE_NODES_REDIS")
# Of a node: where the web side is, if that is on another host (web/relay/).
GPUSHARE_WEB = environment.address("GPUSHARE_WEB")

GPUSHARE_BUDGETS = budgets.read(os.environ)
# Bytes of a request's body; the largest sensible launch is under 1 MiB. Both the same, so that nothing goes to disk.
DATA_UPLOAD_MAX_MEMORY_SIZE = FILE_UPLOAD_MAX_MEMORY_SIZE = 3 << 20

# Proxies whose X-Forwarded-For is believed: the address on the right that is none of them has asked.
GPUSHARE_TRUSTED_PROXIES = environment.networks("GPUSHARE_TRUSTED_PROXIES")
GPUSHARE_TLS = environment.switch("GPUSHARE_TLS")  # everybody comes through a proxy that speaks TLS
if GPUSHARE_TLS:
    environment.require_tls("GPUSHARE_PUBLIC_URL", GPUSHARE_PUBLIC_URL)
    # A browser takes a cookie of such a name from the whole of this origin alone: a page on another port of this host,
    # such as a container's, can neither set nor be sent one without TLS.
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "__Host-sessionid", "__Host-csrftoken"
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    SECURE_HSTS_SECONDS = 365 * 86400
SECURE_CONTENT_TYPE_NOSNIFF = True
SESSION_COOKIE_HTTPONLY = True
X_FRAME_OPTIONS = "DENY"

REST_FRAMEWORK: dict[str, object] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "web.api.protocol.access.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["web.api.protocol.access.IsSignedIn", "web.api.protocol.access.TokenAllows"],
    "DEFAULT_PARSER_CLASSES": ["web.http.body.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "web.http.body.OnlyJson",
    "DEFAULT_PAGINATION_CLASS": "web.api.protocol.queries.Pages",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "web.api.protocol.errors.handle",
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_METADATA_CLASS": None,  # the OpenAPI document says what there is; OPTIONS would say it differently
}
SPECTACULAR_SETTINGS = {
    "TITLE": "gpushare",
    "DESCRIPTION": "Several containers share a few GPUs under quotas. Sizes are bytes; times are UTC.",
    "VERSION": "1",
    "SCHEMA_PATH_PREFIX": "/api/v1/",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    # Links inside the buttons that open an operation are no use to who hears the page.
    "SWAGGER_UI_SETTINGS": {"deepLinking": False},
    "ENUM_NAME_OVERRIDES": {
        "StateEnum": "web.models.State",
        "HappeningEnum": "web.models.Happening",
        "ReceiverKindEnum": "web.models.notifying.Receiver.Kind",
    },
}

GPUSHARE_NODE = environment.text("GPUSHARE_NODE", os.uname().nodename)
_SECRETS = (SECRET_KEY, GPUSHARE_AUDIT_KEY, *SECRET_KEY_FALLBACKS,
            DATABASES["default"].get("PASSWORD"), urlsplit(REDIS_URL).password,
            LDAP.get("AUTH_LDAP_BIND_PASSWORD"), OIDC.get("OIDC_RP_CLIENT_SECRET"))  # fmt: skip
GPUSHARE_LOG_FORMAT = environment.one_of("GPUSHARE_LOG_FORMAT", *logs.FORMS)
LOGGING = logs.configured(
    GPUSHARE_LOG_FORMAT,
    environment.one_of("GPUSHARE_LOG", "INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL"),
    GPUSHARE_NODE,
    _SECRETS,
)

# ---- the appliance's own ---------------------------------------------------------------------------------------

HOST = environment.text("HOST", "127.0.0.1")
PORT = environment.port("PORT", 8000)
GPUSHARE_SSH = environment.listener("GPUSHARE_SSH", HOST)  # the door for ssh; None: there is none
GPUSHARE_SSH_CA = environment.public_keys("GPUSHARE_SSH_CA")  # whose certificates sign people in by ssh
# Applications in containers, each at a host name of its own below this domain; empty: by `gpushare open` alone.
GPUSHARE_APPS = environment.wildcard("GPUSHARE_APPS")
GPUSHARE_APPS_LISTEN = environment.listener("GPUSHARE_APPS_LISTEN", HOST, "8001")  # the door for them
GPUSHARE_APPS_SAME_SITE = environment.switch("GPUSHARE_APPS_SAME_SITE")
if GPUSHARE_APPS:
    if not (GPUSHARE_TLS and GPUSHARE_PUBLIC_URL):
        raise ImproperlyConfigured(
            "GPUSHARE_APPS needs GPUSHARE_TLS=1 and GPUSHARE_PUBLIC_URL: applications are served over TLS only, and "
            "people sign in at the dashboard (docs/apps.md)."
        )
    environment.require_apart(
        "GPUSHARE_APPS", GPUSHARE_APPS, GPUSHARE_PUBLIC_URL,
        "GPUSHARE_APPS_SAME_SITE", is_allowed=GPUSHARE_APPS_SAME_SITE,
    )  # fmt: skip
GPUSHARE_APP_LABEL = heads.label  # the first part of such a name
GPUSHARE_HOME = HOME
GPUSHARE_WEB_USER = web_user.find(environment.text("GPUSHARE_WEB_USER"))  # None: whoever starts it
GPUSHARE_GPUS = environment.text("GPUSHARE_GPUS", "auto")  # auto[:cap=SIZE] | nvidia[:cap=SIZE] | sim:NxSIZE
GPUSHARE_ENGINE = environment.one_of("GPUSHARE_ENGINE", "auto", "docker", "process", "swarm", "kubernetes")
GPUSHARE_POLICY = environment.one_of("GPUSHARE_POLICY", *POLICIES)
# Which of several nodes a launch goes to (web/services/placement/); auto: spread, and a Swarm chooses by itself.
GPUSHARE_PLACEMENT = environment.one_of("GPUSHARE_PLACEMENT", "auto", "spread", "pack", "soonest")
DEMO_EXIT = environment.switch("DEMO_EXIT")  # `make demo` ends after its last step
GPUSHARE_FLAG = flags.flag  # what a field of a launch is called on the command line
GPUSHARE_BUILD = BASE_DIR / ".build"  # what `make` compiles: libgpushare.so, sim/, workload
GPUSHARE_TEMPERATURE = environment.number("GPUSHARE_TEMPERATURE", 85)  # degrees Celsius of a hot GPU; 0: never
GPUSHARE_IDLE_MINUTES = environment.number("GPUSHARE_IDLE_MINUTES", 10)  # holding without computing; 0: never
GPUSHARE_IDLE_ACTION = environment.one_of("GPUSHARE_IDLE_ACTION", "mark", "notify", "pause")
# Host memory that swapped containers may take together; 0 switches swapping off, unset takes half of what is there.
GPUSHARE_SWAP_MEMORY = (
    environment.size("GPUSHARE_SWAP_MEMORY", "0") if environment.text("GPUSHARE_SWAP_MEMORY") else None
)
GPUSHARE_GIVE_WAY = environment.one_of("GPUSHARE_GIVE_WAY", "share", "off", "idle", "rotate")  # who, to those who wait
GPUSHARE_ROTATE_AFTER = environment.number("GPUSHARE_ROTATE_AFTER", 10)  # minutes, of waiting and of holding
GPUSHARE_MOVE_SHARE = environment.number("GPUSHARE_MOVE_SHARE", 1)  # percent of the GPUs' time, for moves between them
GPUSHARE_COMPUTE = environment.one_of("GPUSHARE_COMPUTE", "turns", "shared")  # how containers share a GPU's computing
GPUSHARE_BYPASS_ACTION = environment.one_of("GPUSHARE_BYPASS_ACTION", "show", "kill")  # for who got past the shim
GPUSHARE_METRICS = environment.one_of("GPUSHARE_METRICS", "token", "loopback")  # who may read /metrics
GPUSHARE_PRICE = environment.number("GPUSHARE_PRICE", 0)  # of one GiB of VRAM for an hour, in your currency
GPUSHARE_GPU_PRICE = environment.number("GPUSHARE_GPU_PRICE", 0)  # of an hour of one GPU's computing, beside that
GPUSHARE_DEFAULT_ROLE = environment.one_of(
    "GPUSHARE_DEFAULT_ROLE", "user", "viewer", "operator", "admin"
)  # of people in no role's group
GPUSHARE_EXEC = environment.one_of("GPUSHARE_EXEC", "user", "operator", "admin")  # may start programs in containers
GPUSHARE_VOLUME_ROOTS = environment.words(
    "GPUSHARE_VOLUME_ROOTS"
)  # host folders that may be mounted; {user} is who launches
GPUSHARE_PORTS = environment.port_range("GPUSHARE_PORTS", "20000-29999")  # host ports that may be published
# TCP ports too while the dashboard has no TLS: a browser that opens such a port sends it the session of the dashboard.
GPUSHARE_PORTS_WITHOUT_TLS = environment.switch("GPUSHARE_PORTS_WITHOUT_TLS")

# ---- the Docker engine: what its containers get ----------------------------------------------------------------

GPUSHARE_DOCKER_HOST = environment.text(
    "GPUSHARE_DOCKER_HOST", environment.text("DOCKER_HOST", "unix:///var/run/docker.sock")
)
GPUSHARE_GPU_ACCESS = environment.one_of("GPUSHARE_GPU_ACCESS", "auto", "runtime", "cdi", "raw")
# Whose containers may come by Docker's volume plugin; the first is whose they are where nobody is named.
GPUSHARE_PLUGIN_PEOPLE = environment.words("GPUSHARE_PLUGIN_PEOPLE")
GPUSHARE_PLUGIN_SOCKET = environment.text("GPUSHARE_PLUGIN_SOCKET", "/run/docker/plugins/gpushare.sock")
# A node of Kubernetes: whose its claims are, by namespace, or namespace/service account ("*": all others; @GROUP: the
# member of that name); how a pod is ended; where the cluster and the kubelet are.
GPUSHARE_KUBERNETES_PEOPLE = directory.group_map(environment.text("GPUSHARE_KUBERNETES_PEOPLE"))
GPUSHARE_KUBERNETES_API = environment.text("GPUSHARE_KUBERNETES_API")  # empty: as a pod finds it
GPUSHARE_KUBERNETES_ACCOUNT = environment.text(
    "GPUSHARE_KUBERNETES_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"
)  # with `token` and `ca.crt`
GPUSHARE_KUBERNETES_KILL = environment.one_of("GPUSHARE_KUBERNETES_KILL", "delete", "evict")
# Where people read what pods print: a link with {namespace}, {pod} and {container} in it.
GPUSHARE_KUBERNETES_LOGS = environment.text("GPUSHARE_KUBERNETES_LOGS")
GPUSHARE_KUBELET = environment.text("GPUSHARE_KUBELET", "/var/lib/kubelet")
GPUSHARE_CDI_FOLDER = environment.text("GPUSHARE_CDI_FOLDER", "/var/run/cdi")  # where runtimes look for specifications
GPUSHARE_REGISTRY_CONFIG = environment.text("GPUSHARE_REGISTRY_CONFIG")  # a Docker config.json with credentials
GPUSHARE_HOST_MEMORY = environment.size("GPUSHARE_HOST_MEMORY", "0") or None  # for all together; None: nine tenths
# The most that one container may ask for, and what it gets if it asks for nothing; None: all of that.
GPUSHARE_CONTAINER_MEMORY = environment.size("GPUSHARE_CONTAINER_MEMORY", "0") or None
GPUSHARE_LOG_BYTES = environment.size("GPUSHARE_LOG_BYTES", "100MiB")  # kept of one container's output

environment.refuse_unknown(*budgets.NAMES, *directory.SETTINGS)
