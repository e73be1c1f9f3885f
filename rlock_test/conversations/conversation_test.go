// Package conversations tests the scripts with text files of calls, replies and states.
package conversations

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// A conversation with Redis is a test written as text, in testdata. A line has an owner's action; below it are the reply,
// the published messages, and all of Redis's state afterwards:
//
//	acquire B1 lease=30s
//	----
//	held by A1 for 30s
//	job (hash, 30s): A1=1
//
// An owner is a letter for its client and a number. `go test ./rlock_test/conversations -rewrite` records the scripts'
// present behaviour; read the difference. Directives for all files:
//
//	begin TITLE              a new conversation, with an empty Redis
//	redis COMMAND …          a command of Redisson or an operator; @A is the id of client A
//	age 5s                   time passes: all expiries, and all times in scores, come nearer
//	listen CHANNEL …         each channel has a listener until the next begin
//
// During a call of this library its process listens to its own channel, and Redis counts it, except with the argument unseen.
//
// No time passes between two steps: the test gives back the time it takes itself.
type conversation struct {
	t         testing.TB
	addr      string
	rdb       rueidis.Client
	monitor   *monitor
	clock     int64                  // server time in ms of the last giveBack
	quick     int64                  // the longest time in ms of the command of the present step
	steps     []*datadriven.TestData // since the last begin
	listeners []listener
}

// directive runs one line of a conversation and returns the reply as text.
type directive func(c *conversation, d *datadriven.TestData) string

// converse runs the conversations of a file about a lock with that unlock channel; "": all its processes are unseen.
func converse(t *testing.T, file, channel string, own map[string]directive) {
	t.Helper()
	server := redistest.Start(t)
	c := &conversation{t: t, addr: server.Addr(), rdb: server.Client(t), monitor: newMonitor(t, server.Addr())}
	all := make(map[string]directive)
	for name, step := range own {
		if all[name] = step; channel != "" && !strings.HasPrefix(name, "java-") {
			all[name] = func(c *conversation, d *datadriven.TestData) string { return c.listening(channel, step, d) }
		}
	}
	maps.Copy(all, map[string]directive{
		"begin":  (*conversation).begin,
		"redis":  (*conversation).redis,
		"age":    (*conversation).age,
		"listen": (*conversation).listen,
	})
	datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
		t.Helper()
		c.t = t
		if all[d.Cmd] == nil {
			d.Fatalf(t, "unknown directive %q", d.Cmd)
		}
		if d.Cmd == "begin" {
			c.steps = nil
		}
		copied := *d // datadriven reuses it
		c.steps = append(c.steps, &copied)
		text, inTime := c.play(all[d.Cmd], d)
		for try := 0; !inTime; try++ {
			require.Less(t, try, 50, "the machine is too slow for this")
			inTime = true
			for _, d := range c.steps {
				var quick bool
				text, quick = c.play(all[d.Cmd], d)
				inTime = inTime && quick
			}
		}
		return text
	})
	c.begin(nil)
}

// atMost is the longest step, in ms, that keeps its times exact to the second, also those of a lease of 750 ms, which stays below a second
// and above a half. After a slower step, the conversation is replayed from its beginning.
const atMost = 240

// play returns a step's result as text, and whether the step was fast enough.
func (c *conversation) play(step directive, d *datadriven.TestData) (text string, inTime bool) {
	c.t.Helper()
	before := c.clock
	c.giveBack()
	began := c.clock
	waited := before != 0 && began-before >= atMost // between two steps: what has ended by then does not come back
	c.quick = atMost
	reply := step(c, d)
	c.giveBack() // at once: from command to command it differs by little
	took := c.clock - began
	said := c.said()
	c.giveBack()
	state := c.state()
	if !strings.Contains(state, ":ends (") {
		c.quick = atMost // nobody has a place in line whose end must keep its order
	}
	inTime = !waited && took < c.quick && c.now()-began < atMost
	return lines(reply) + said + state, inTime
}

// inScript matches the script and line in an error from Redis, which change with the text of the script.
var inScript = regexp.MustCompile(
	`(Error running script \(call to f_[0-9a-f]{40}\): )?(@?user_script: ?\d+: )+-?| script: ([0-9a-f]{40}, )?on @user_script:\d+\.`)

// lines formats a reply as lines, with short names.
func lines(reply string) string {
	reply = inScript.ReplaceAllString(reply, "")
	if reply == "" {
		return ""
	}
	return shortNames(reply) + "\n"
}

func (c *conversation) must(cmd ...string) rueidis.RedisMessage {
	c.t.Helper()
	m, err := c.do(cmd...)
	if err != nil && !rueidis.IsRedisNil(err) {
		require.NoError(c.t, err)
	}
	return m
}

func (c *conversation) do(cmd ...string) (rueidis.RedisMessage, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c.rdb.Do(ctx, c.rdb.B().Arbitrary(cmd...).Build()).ToMessage()
}

func (c *conversation) begin(*datadriven.TestData) string {
	for _, e := range c.listeners {
		require.NoError(c.t, e.conn.Close())
	}
	for _, e := range c.listeners {
		redistest.Eventually(c.t, 10*time.Second, func() bool {
			return reply(c.must("PUBSUB", "NUMSUB", e.channel)) == e.channel+" 0"
		}, "the channel must have no listener")
	}
	c.listeners = nil
	c.must("FLUSHALL")
	c.must("SCRIPT", "FLUSH")
	c.clock = 0
	return ""
}

func (c *conversation) redis(d *datadriven.TestData) string {
	words := make([]string, len(d.CmdArgs))
	for i, arg := range d.CmdArgs {
		words[i] = longNames(arg.String())
	}
	m, err := c.do(words...)
	if err != nil {
		return err.Error()
	}
	return reply(m)
}

func reply(m rueidis.RedisMessage) string {
	if n, err := m.ToInt64(); err == nil {
		return strconv.FormatInt(n, 10)
	}
	if s, err := m.ToString(); err == nil {
		return s
	}
	all, _ := m.ToArray()
	texts := make([]string, len(all))
	for i, e := range all {
		texts[i] = reply(e)
	}
	return strings.Join(texts, " ")
}

// Numbers this large are times in milliseconds, except the expiry that marks a permit without one.
const (
	aTime = 1e12
	never = 922337203685477
)

// timeInText matches such a time in a hash value.
var timeInText = regexp.MustCompile(`\b[0-9]{13}\b`)

// passScript lets ARGV[1] ms pass, or, if ARGV[2] is not 0, gives back the time since then.
//
//nolint:dupword // several blocks of Lua end
const passScript = `
local t = redis.call('time')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local ms = tonumber(ARGV[1])
if ARGV[2] ~= '0' then
  ms = ARGV[2] - now
end
for _, key in ipairs(redis.call('keys', '*')) do
  local ttl = redis.call('pttl', key)
  if ttl >= 0 then
    redis.call('pexpire', key, ttl - ms)
  end
  if redis.call('type', key).ok == 'zset' then
    local members = redis.call('zrange', key, 0, -1, 'withscores')
    for i = 2, #members, 2 do
      if tonumber(members[i]) > 1e12 and members[i] ~= '922337203685477' then
        redis.call('zadd', key, members[i] - ms, members[i - 1])
      end
    end
  end
end
return now`

var passes = rueidis.NewLuaScript(passScript)

func (c *conversation) pass(ms, since int64) (now int64) {
	c.t.Helper()
	now, err := passes.Exec(c.t.Context(), c.rdb, nil, []string{strconv.FormatInt(ms, 10), strconv.FormatInt(since, 10)}).AsInt64()
	require.NoError(c.t, err)
	return now
}

func (c *conversation) now() int64 {
	c.t.Helper()
	m := c.must("TIME")
	clock, err := m.AsIntSlice()
	require.NoError(c.t, err)
	return clock[0]*1000 + clock[1]/1000
}

// giveBack returns the time spent since its last call.
func (c *conversation) giveBack() {
	c.t.Helper()
	c.clock = c.pass(0, c.clock)
}

func (c *conversation) age(d *datadriven.TestData) string {
	by, err := time.ParseDuration(d.CmdArgs[0].String())
	require.NoError(c.t, err)
	c.pass(by.Milliseconds(), 0)
	return ""
}

// dump returns each key with its type, expiry and content.
var dump = rueidis.NewLuaScript(`
local read = {hash = {'hgetall'}, list = {'lrange', 0, -1}, string = {'get'}, zset = {'zrange', 0, -1, 'withscores'}}
local keys, all = redis.call('keys', '*'), {}
table.sort(keys)
for i, key in ipairs(keys) do
  local kind = redis.call('type', key).ok
  local content = redis.call(read[kind][1], key, unpack(read[kind], 2))
  all[i] = {key, kind, redis.call('pttl', key), type(content) == 'table' and content or {content}}
end
return all`)

// state returns Redis's entire state, a line per key.
func (c *conversation) state() string {
	c.t.Helper()
	keys, err := dump.Exec(c.t.Context(), c.rdb, nil, nil).ToArray()
	require.NoError(c.t, err)
	var text strings.Builder
	for _, entry := range keys {
		e, err := entry.ToArray()
		require.NoError(c.t, err)
		ttl, err := e[2].AsInt64()
		require.NoError(c.t, err)
		content, err := e[3].AsStrSlice()
		require.NoError(c.t, err)
		lasts, kind := seconds(ttl), reply(e[1])
		if ttl == -1 {
			lasts = "no expiry"
		}
		fmt.Fprintf(&text, "%s (%s, %s): %s\n", shortNames(reply(e[0])), kind, lasts, strings.Join(c.values(kind, content), " "))
	}
	if text.Len() == 0 {
		return "nothing is left\n"
	}
	return text.String()
}

func (c *conversation) values(kind string, flat []string) []string {
	c.t.Helper()
	if kind == "string" || kind == "list" {
		for i := range flat {
			flat[i] = shortNames(flat[i])
		}
		return flat
	}
	var pairs []string
	unordered := kind == "hash" // as are times that differ only by a step's duration
	for i := 0; i+1 < len(flat); i += 2 {
		value := flat[i+1]
		if score, err := strconv.ParseFloat(value, 64); err == nil && score == never {
			value = "never"
		} else if err == nil && score > aTime {
			value = "now" + signed(int64(score)-c.clock)
			unordered = true
		}
		value = timeInText.ReplaceAllStringFunc(value, func(ms string) string {
			at, _ := strconv.ParseInt(ms, 10, 64)
			return "now" + signed(at-c.clock)
		})
		pairs = append(pairs, shortNames(permitName(flat[i]))+"="+shortNames(value))
	}
	if unordered {
		slices.Sort(pairs)
	}
	return pairs
}

// seconds rounds a time in ms to seconds: a step takes less than half a second.
func seconds(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).Round(time.Second).String()
}

func signed(ms int64) string {
	if text := seconds(ms); strings.HasPrefix(text, "-") {
		return text
	}
	return "+" + seconds(ms)
}

// Names: A1 is short for owner 1 of client A, and @A for the client.

const clientForm = "%08x-0000-4000-8000-000000000000"

var (
	shortOwner  = regexp.MustCompile(`\b([A-Z])(-?[0-9]+)\b`)
	shortClient = regexp.MustCompile(`@([A-Z])\b`)
	longClient  = regexp.MustCompile(`([0-9a-f]{8})-0000-4000-8000-000000000000(:?)(-?[0-9]*)`)
)

func clientID(letter string) string { return fmt.Sprintf(clientForm, letter[0]-'A'+1) }

func longNames(text string) string {
	text = shortClient.ReplaceAllStringFunc(text, func(s string) string { return clientID(s[1:]) })
	return shortOwner.ReplaceAllStringFunc(text, func(s string) string { return clientID(s[:1]) + ":" + s[1:] })
}

func shortNames(text string) string {
	return longClient.ReplaceAllStringFunc(text, func(s string) string {
		parts := longClient.FindStringSubmatch(s)
		n, _ := strconv.ParseUint(parts[1], 16, 32)
		letter := string(rune('A' + n - 1))
		if parts[3] == "" {
			return "@" + letter + parts[2]
		}
		return letter + parts[3]
	})
}

// ownerArg returns a directive's first argument, with full names.
func ownerArg(d *datadriven.TestData) string { return longNames(d.CmdArgs[0].String()) }

// durationArg returns the named duration of a directive, or usual.
func durationArg(d *datadriven.TestData, name string, usual time.Duration) time.Duration {
	text := textArg(d, name, usual.String())
	value, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return value
}

func numberArg(d *datadriven.TestData, name string, usual int) int {
	value, err := strconv.Atoi(textArg(d, name, strconv.Itoa(usual)))
	if err != nil {
		panic(err)
	}
	return value
}

// textArg returns a directive's argument name=text, with full names.
func textArg(d *datadriven.TestData, name, usual string) string {
	for _, arg := range d.CmdArgs {
		if arg.Key == name && len(arg.Vals) == 1 {
			return longNames(arg.Vals[0])
		}
	}
	return usual
}

// monitor reads the scripts' messages without a subscription, since scripts count subscribers.
type monitor struct {
	conn  net.Conn
	lines *bufio.Reader
	marks int
}

func newMonitor(t testing.TB, addr string) *monitor {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, "MONITOR\r\n")
	require.NoError(t, err)
	m := &monitor{conn: conn, lines: bufio.NewReader(conn)}
	line, err := m.lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", line)
	return m
}

var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// inSeconds returns a message with its times in seconds: a reader's remaining lease, or the time until a process
// queued for permits looks.
func inSeconds(channel, message string) string {
	if after, ok := strings.CutPrefix(message, "? "); ok && strings.HasPrefix(channel, semaphoreChannel) {
		if ms, err := strconv.ParseInt(after, 10, 64); err == nil && ms > 0 {
			return "? " + seconds(ms)
		}
	}
	if ms, err := strconv.ParseInt(message, 10, 64); channel == rwChannel && err == nil && ms > 1 {
		return seconds(ms)
	}
	return message
}

// said returns the messages since the last call, one per line.
func (c *conversation) said() string {
	c.t.Helper()
	m := c.monitor
	m.marks++
	mark := fmt.Sprintf("mark %d", m.marks)
	c.must("ECHO", mark)
	require.NoError(c.t, m.conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	var text strings.Builder
	for {
		line, err := m.lines.ReadString('\n')
		require.NoError(c.t, err)
		if fromScript := strings.Contains(line, " lua] "); !fromScript && !strings.Contains(line, mark) {
			continue // a call, with all of its script
		}
		words := quoted.FindAllString(line, -1)
		for i := range words {
			words[i], err = strconv.Unquote(words[i])
			require.NoError(c.t, err)
		}
		switch {
		case len(words) == 2 && words[1] == mark:
			return text.String()
		case len(words) == 3 && strings.Contains(line, " lua] ") && strings.HasSuffix(strings.ToLower(words[0]), "publish"):
			fmt.Fprintf(&text, "message on %s: %s\n", shortNames(words[1]), shortNames(inSeconds(words[1], words[2])))
		}
	}
}

// listener is a connection subscribed to a channel.
type listener struct {
	channel string
	conn    net.Conn
}

func (c *conversation) listen(d *datadriven.TestData) string {
	for _, arg := range d.CmdArgs {
		channel := longNames(arg.String())
		c.listeners = append(c.listeners, listener{channel, c.subscribe(channel)})
	}
	return ""
}

func (c *conversation) subscribe(channel string) net.Conn {
	conn, err := net.Dial("tcp", c.addr)
	require.NoError(c.t, err)
	_, err = fmt.Fprintf(conn, "SUBSCRIBE %s\r\n", channel)
	require.NoError(c.t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(c.t, err)
	require.Equal(c.t, "*3\r\n", line)
	return conn
}

// listening runs a step while the processes of the owners in it listen.
func (c *conversation) listening(channel string, step directive, d *datadriven.TestData) string {
	if d.HasArg("unseen") {
		return step(c, d)
	}
	clients := make(map[string]bool)
	for _, arg := range d.CmdArgs {
		for _, word := range append(arg.Vals, arg.Key) {
			if shortOwner.MatchString(word) {
				clients[word[:1]] = true
			}
		}
	}
	var conns []net.Conn
	for letter := range clients {
		conns = append(conns, c.subscribe(channel+":"+clientID(letter)))
	}
	reply := step(c, d)
	for _, conn := range conns {
		_, err := io.WriteString(conn, "UNSUBSCRIBE\r\nQUIT\r\n")
		require.NoError(c.t, err)
		_, err = io.Copy(io.Discard, conn)
		require.NoError(c.t, err)
	}
	return reply
}
