package memory_test

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/bubble"
	"github.com/go-rlock/rlock/internal/testing/memredis"
	"github.com/go-rlock/rlock/rlocktest/internal/memory"
)

func start(t *testing.T) (s *memory.Server, do func(cmd string) string) {
	t.Helper()
	s, err := memory.New(memredis.Options{})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	conn, err := s.Dial()
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return s, func(cmd string) string {
		t.Helper()
		args := strings.Split(cmd, "|")
		text := fmt.Sprintf("*%d\r\n", len(args))
		for _, a := range args {
			text += fmt.Sprintf("$%d\r\n%s\r\n", len(a), a)
		}
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err := conn.Write([]byte(text))
		require.NoError(t, err)
		b := make([]byte, 1<<10)
		n, err := conn.Read(b)
		require.NoError(t, err)
		return strings.ReplaceAll(strings.TrimSuffix(string(b[:n]), "\r\n"), "\r\n", " ")
	}
}

// A key exists until the clock, in whole milliseconds, is later than its time, whoever sets it and however.
func TestExpiry(t *testing.T) {
	const ms = time.Millisecond
	for set, lasts := range map[string]time.Duration{
		"SET|k|v|PX|5":              5 * ms,
		"SET|k|v|NX|EX|2":           2 * time.Second,
		"SET|k|PX|PX|5":             5 * ms,
		"SET|k|v|PXAT|946684800007": 7 * ms,
		"SET|k|v|EXAT|946684801":    time.Second,
		"SETEX|k|1|v":               time.Second,
		"PSETEX|k|5|v":              5 * ms,
		"EVAL|return redis.call('set', KEYS[1], 'v', 'px', 5)|1|k": 5 * ms,
	} {
		requireLasts(t, lasts, set)
	}
	for set, lasts := range map[string]time.Duration{
		"EXPIRE|k|1": time.Second, "PEXPIRE|k|5": 5 * ms, "PEXPIRE|k|5|NX": 5 * ms, "EXPIREAT|k|946684801": time.Second,
		"PEXPIREAT|k|946684800007": 7 * ms, "GETEX|k|EX|1": time.Second, "GETEX|k|PXAT|946684800005": 5 * ms, "PEXPIRE|k|0": -ms,
		"PEXPIREAT|k|946684800000": -ms, "EVAL|return redis.call('pexpire', KEYS[1], 5)|1|k": 5 * ms,
	} {
		requireLasts(t, lasts, "SET|k|v", set)
	}
}

// requireLasts requires that the key k exists for that long after some commands, and a millisecond more, and that Redis says so. The bubble's
// clock is not at the beginning of a millisecond.
func requireLasts(t *testing.T, lasts time.Duration, cmds ...string) {
	t.Helper()
	t.Run(cmds[len(cmds)-1], func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			_, do := start(t)
			time.Sleep(700 * time.Microsecond)
			for _, cmd := range cmds {
				require.NotContains(t, do(cmd), "-ERR")
			}
			if lasts > 0 {
				require.Equal(t, fmt.Sprintf(":%d", lasts.Milliseconds()), do("PTTL|k"))
				require.Equal(t, fmt.Sprintf(":%d", (lasts.Milliseconds()+500)/1000), do("TTL|k"))
				require.Equal(t, fmt.Sprintf(":%d", time.Now().Add(lasts).UnixMilli()), do("PEXPIRETIME|k"))
				require.Equal(t, fmt.Sprintf(":%d", lasts.Milliseconds()), do("EVAL|return redis.call('pttl', KEYS[1])|1|k"))
			}
			time.Sleep(lasts)
			if lasts > 0 {
				require.Equal(t, ":0", do("PTTL|k"))
			}
			time.Sleep(299 * time.Microsecond)
			require.Equal(t, fmt.Sprintf(":%d", min(1, max(0, lasts))), do("EXISTS|k"))
			time.Sleep(time.Microsecond)
			require.Equal(t, ":0", do("EXISTS|k"))
			require.Equal(t, ":-2", do("PTTL|k"))
		})
	})
}

// Scripts of all servers run in the same Lua states, and see nothing of each other.
func TestScripts(t *testing.T) {
	_, do := start(t)
	for script, want := range map[string]string{
		"return {KEYS[1], ARGV[1], 2, false, {true}}":        "*5 $1 k $1 a :2 $-1 *1 :1",
		"return redis.sha1hex('')":                           "$40 da39a3ee5e6b4b0d3255bfef95601890afd80709",
		"return redis.status_reply('FINE')":                  "+FINE",
		"return redis.error_reply('MY error')":               "-MY error",
		"return cjson.encode({1, 2})":                        "$5 [1,2]",
		"redis.log(redis.LOG_NOTICE, 'x'); redis.setresp(2)": "$-1",
		"return redis.pcall('nonsense').err":                 "$44 ERR Unknown Redis command called from script",
		"return redis.pcall('get').err":                      "$47 ERR wrong number of arguments for 'get' command",
		"return coroutine.wrap(function() return 7 end)()":   ":7",
		"return tostring(os.clock() >= 0)":                   "$4 true",
	} {
		require.Equal(t, want, do("EVAL|"+script+"|1|k|a"), script)
	}
	for script, want := range map[string]string{
		"new = 1":               "nonexistent global variable 'new'",
		"return new":            "nonexistent global variable 'new'",
		"return redis.call()":   "at least one argument",
		"return redis.call({})": "must be strings or integers",
		"return (":              "Error compiling script",
	} {
		require.Contains(t, do("EVAL|"+script+"|0"), want, script)
	}
	require.Contains(t, do("EVAL_RO|return redis.call('set', KEYS[1], 'v')|1|k"), "Write commands are not allowed")
	require.Equal(t, "$-1", do("EVAL_RO|return redis.call('get', KEYS[1])|1|k"))
	require.Contains(t, do("EVAL|x"), "wrong number of arguments")
	require.Contains(t, do("EVAL|x|1"), "Number of keys")
}

// A server knows the scripts that it has run or loaded, until it is told to forget them.
func TestScriptsAreKnown(t *testing.T) {
	s, do := start(t)
	const one, two = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db", "7f923f79fe76194c868d7e1d0820de36700eb649" // sums of "return 1", "return 2"
	require.Contains(t, do("EVALSHA|"+one+"|0"), "-NOSCRIPT")
	require.Equal(t, ":1", do("EVAL|return 1|0"))
	require.Equal(t, "$40 "+two, do("SCRIPT|LOAD|return 2"))
	require.Equal(t, "*3 :1 :1 :0", do("SCRIPT|EXISTS|"+one+"|"+two+"|0"))
	require.Equal(t, ":1", do("EVALSHA|"+one+"|0"))
	require.Equal(t, ":2", do("EVALSHA|"+two+"|0"))
	require.Equal(t, "+OK", do("SCRIPT|FLUSH"))
	require.Contains(t, do("EVALSHA|"+two+"|0"), "-NOSCRIPT")
	require.Equal(t, ":1", do("EVAL|return 1|0"))
	s.Forget()
	require.Contains(t, do("EVALSHA|"+one+"|0"), "-NOSCRIPT")
}

// In a transaction, scripts run at its end.
func TestTransaction(t *testing.T) {
	_, do := start(t)
	const set = "return redis.call('incr', KEYS[1])"
	require.Equal(t, ":1", do("EVAL|"+set+"|1|k"))
	require.Equal(t, "+OK", do("MULTI"))
	h := sha1.Sum([]byte(set))
	sum := hex.EncodeToString(h[:])
	require.Equal(t, "+QUEUED", do("EVAL|"+set+"|1|k"))
	require.Equal(t, "+QUEUED", do("EVALSHA|"+sum+"|1|k"))
	require.Equal(t, "+QUEUED", do("PEXPIRE|k|5"))
	require.Equal(t, "+QUEUED", do("SET|k|8"))
	require.Contains(t, do("EXEC"), "*4 :2 :3 :1 +OK")
	require.Equal(t, ":9", do("EVAL|"+set+"|1|k"))
}

func TestCommandStats(t *testing.T) {
	_, do := start(t)
	do("EVAL|return redis.call('get', KEYS[1])|1|k")
	do("CLIENT|GETNAME")
	got := do("INFO|commandstats")
	for _, want := range []string{"cmdstat_eval:calls=1,", "cmdstat_get:calls=1,", "cmdstat_client|getname:calls=1,"} {
		require.Contains(t, got, want)
	}
	require.Equal(t, ":3", do("WAIT|3|0"))
}

func TestFreeze(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, do := start(t)
		do("SET|k|v|PX|5")
		time.Sleep(time.Millisecond)
		s.Freeze()
		time.Sleep(time.Minute)
		require.Equal(t, ":4", do("PTTL|k"))
	})
}
