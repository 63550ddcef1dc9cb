"""Programs that damage their own interpreter, by name: what each does before its functions are called."""

# Our own code does not notice these: the program's true answer comes.
HARMLESS = {
    "builtins gone": """
import builtins
gone = delattr
for name in list(vars(builtins)):
    if name not in ('__spec__', '__loader__'): gone(builtins, name)
""",
    "builtins replaced": """
import builtins
for n in ('len', 'isinstance', 'issubclass', 'type', 'open', 'print', 'getattr', 'str', 'sorted', '__import__', 'repr',
          'callable', 'enumerate', 'BaseException', 'Exception', 'OSError'):
    setattr(builtins, n, None)
""",
    "json": """
import json, json.encoder, json.decoder, json.scanner
for m in (json, json.encoder, json.decoder, json.scanner):
    for n in list(vars(m)): setattr(m, n, None) if not n.startswith('__') else None
""",
    "os": """
import os, posix
for m in (os, posix):
    for n in list(vars(m)):
        if not n.startswith('__') and n != 'fspath': setattr(m, n, None)
""",
    "modules": """
import sys
c, s, v, e, own = callable, setattr, vars, Exception, sys.modules[__name__]
for m in [m for m in sys.modules.values() if type(m) is type(sys)]:
    for n in [*v(m)]:
        if n != '__name__' and c(v(m)[n]) and m is not own:
            try: s(m, n, None)
            except e: pass
""",
    "sys.modules cleared": """
import sys
sys.modules.clear()
""",
    "sys.modules replaced": """
import sys
sys.modules = None
""",
    "recursion limit": """
import sys
sys.setrecursionlimit(sys._getframe().f_lineno + 25)
""",
    "stdout gone": """
import sys
sys.stdout = sys.stderr = sys.__stdout__ = None
""",
    "stdout garbage": """
import sys
class G:
    def __getattr__(self, n): raise SystemExit(3)
sys.stdout = sys.stderr = G()
""",
    "stdout closed": """
import sys
sys.stdout.close()
sys.stderr.close()
""",
    "descriptors": """
import os
os.close(0); os.close(1); os.close(2); os.closerange(3, 100)
""",
    "io": """
import io, _io
for m in (io, _io):
    for n in ('open', 'FileIO', 'TextIOWrapper', 'BufferedWriter', 'open_code'): setattr(m, n, None)
""",
    "threading": """
import threading, _thread
for m in (threading, _thread):
    for n in list(vars(m)):
        if not n.startswith('__'): setattr(m, n, None)
""",
    "signals": """
import signal
def bad(*a): raise RuntimeError('signal')
for n in range(1, 32):
    try: signal.signal(n, bad)
    except (OSError, ValueError): pass
signal.setitimer(signal.ITIMER_REAL, 1000)
""",
    "gc callbacks": """
import gc
def bad(*a): raise RuntimeError('gc')
gc.callbacks.append(bad)
gc.set_threshold(1)
""",
    "traceback": """
import traceback, linecache, tokenize
for m in (traceback, linecache, tokenize):
    for n in list(vars(m)):
        if not n.startswith('__'): setattr(m, n, None)
""",
    "codecs": """
import codecs
for n in ('strict', 'replace', 'ignore', 'backslashreplace', 'surrogateescape'): codecs.register_error(n, lambda e: 1/0)
""",
    "ctypes": """
import ctypes
for n in list(vars(ctypes)):
    if not n.startswith('__'): setattr(ctypes, n, None)
""",
    "hooks": """
import sys
def bad(*a): raise RuntimeError('hook')
sys.excepthook = sys.unraisablehook = sys.displayhook = sys.breakpointhook = bad
""",
    "import system": """
import sys
sys.meta_path.clear(); sys.path_hooks.clear(); sys.path.clear(); sys.path_importer_cache.clear()
""",
    "working directory": """
import os, shutil
os.chdir('/')
""",
    "umask": """
import os
os.umask(0o777)
""",
    "environment": """
import os
os.environ.clear()
""",
    "warnings": """
import warnings
warnings.simplefilter('error')
warnings.warn = warnings.showwarning = None
""",
    "digits": """
import sys
if hasattr(sys, 'set_int_max_str_digits'): sys.set_int_max_str_digits(640)
""",
    "exit functions": """
import os, sys, atexit
os._exit = sys.exit = atexit.register = None
""",
}

# These reach our code, or are errors of the program's own: some answer comes.
FATAL = {
    "trace": """
import sys
def bad(*a): raise RuntimeError('trace')
sys.settrace(bad)
""",
    "profile": """
import sys
def bad(*a): raise RuntimeError('profile')
sys.setprofile(bad)
""",
    "audit hook": """
import sys
sys.addaudithook(lambda *a: 1 / 0)
""",
    "monitoring": """
import sys
if hasattr(sys, "monitoring"):
    m = sys.monitoring
    def bad(*a): raise RuntimeError("monitoring")
    m.use_tool_id(2, "bad")
    m.register_callback(2, m.events.PY_START, bad)
    m.set_events(2, m.events.PY_START)
""",
    "alarms": """
import signal
def bad(*a): raise RuntimeError('alarm')
signal.signal(signal.SIGALRM, bad)
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
""",
    "asynchronous exceptions": """
import ctypes, threading, time
def shoot(id=threading.get_ident()):
    while True:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(id), ctypes.py_object(KeyError))
        time.sleep(0.0005)
threading.Thread(target=shoot, daemon=True).start()
""",
    "all descriptors": """
import os
os.closerange(0, 5000)
""",
    "few descriptors": """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
""",
    "our frames": """
import sys
frame = sys._getframe()
while frame:
    if 'kcoral_runtime' in frame.f_globals.get('__name__', ''): frame.f_globals.clear()
    frame = frame.f_back
""",
    "system exit in finalisers": """
import os
class D:
    def __del__(self): os._exit(3)
d = D()
""",
}
