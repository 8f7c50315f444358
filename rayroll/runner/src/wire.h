/* The numbers of the wire. docs/runner-protocol.md is the contract, rayroll/runner/protocol.py the other end; a test
 * compares all three. */
#ifndef RR_WIRE_H
#define RR_WIRE_H

enum {
    WIRE_VERSION = 1,
    WIRE_HEADER = 12,
    WIRE_KEY = 16,
    WIRE_MAX_PAYLOAD = 16 << 20,
    WIRE_WINDOW = 256 << 10,
    WIRE_CHUNK = 64 << 10,
};

/* Frames: below 64 from the host, from 64 to the host. */
enum {
    F_HELLO = 1,
    F_LEASE = 2,
    F_EXEC = 3,
    F_PUT = 4,
    F_GET = 5,
    F_DIGEST = 6,
    F_KILL_ALL = 7,
    F_CANCEL = 8,
    F_CREDIT = 9,
    F_ACK = 10,
    F_DATA = 11,
    F_END = 12,
    F_SHUTDOWN = 13,
    F_BASELINE = 14,
    F_RESET = 15,
    F_HELLO_OK = 64,
    F_LEASE_OK = 65,
    F_RESULT = 66,
    F_OUTPUT = 67,
    F_WANT = 68,
    F_ERROR = 69,
    F_REFUSED = 70,
};

/* Fields. */
enum {
    T_KEY = 1,
    T_NONCE = 2,
    T_VERSION_MIN = 3,
    T_VERSION_MAX = 4,
    T_LEASE_MS = 5,
    T_IDS = 6,
    T_BUILD = 7,
    T_PID = 8,
    T_UID = 9,
    T_IS_INIT = 10,
    T_SHELL = 11,
    T_MACHINE = 12,
    T_KERNEL = 13,
    T_CWD = 14,
    T_EPOCH = 15,
    T_INSTANCE = 16,
    T_SCRIPT = 32,
    T_ARGV = 33,
    T_ENV = 34,
    T_USER = 35,
    T_STDIN = 36,
    T_TIMEOUT_MS = 37,
    T_IDLE_MS = 38,
    T_GRACE_MS = 39,
    T_HEAD_BYTES = 40,
    T_TAIL_BYTES = 41,
    T_FLAGS = 42,
    T_PATH = 64,
    T_MAX_BYTES = 65,
    T_EXCLUDE = 66,
    T_KEEP = 67,
    T_BYTES = 72,
    T_EXIT_CODE = 96,
    T_SIGNAL = 97,
    T_LIMIT = 98,
    T_OUTPUT_BYTES = 99,
    T_HEAD_KEPT = 100,
    T_STATE_SAVED = 101,
    T_NOTICE = 102,
    T_QUEUED_NS = 103,
    T_SPAWN_NS = 104,
    T_RUN_NS = 105,
    T_DRAIN_NS = 106,
    T_USER_NS = 107,
    T_SYSTEM_NS = 108,
    T_THROTTLED_NS = 109,
    T_MAX_RSS_BYTES = 110,
    T_MEMORY_HITS = 111,
    T_SHA256 = 112,
    T_COUNT = 113,
    T_REPAIRED = 114,
    T_ERRNO = 128,
    T_REASON = 129,
    T_CODE = 130,
};

/* Bits of T_FLAGS. */
enum {
    FLAG_CARRY = 1,
    FLAG_CLEAN_ENV = 2,
    FLAG_NO_CONTENT = 4,
    FLAG_TREE = 8,
};

/* Values of T_LIMIT: what ended a command before its own end. */
enum {
    LIMIT_NONE = 0,
    LIMIT_TOTAL = 1,
    LIMIT_IDLE = 2,
    LIMIT_CANCELLED = 3,
    LIMIT_KEEPER_LOST = 4,
    LIMIT_KILL_ALL = 5,
};

#endif
