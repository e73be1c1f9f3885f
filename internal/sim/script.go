package sim

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/alicebob/miniredis/v2"
	redis "github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// scripts runs a server's scripts in place of miniredis, which makes a new Lua state for each call: that was half the
// time of a world. The commands that a script calls are still miniredis's own. TestScripts compares the two.
type scripts struct {
	redis *miniredis.Miniredis // its lock guards the fields below

	change func(text string) string // of each script; may be nil
	// saw, if not nil, gets the keys and the first argument of each script that ran, and a function to read the keys.
	saw func(keys []string, by string, read reader)

	uncounted Uncounted

	known  map[string]string // by the sum
	state  *lua.LState
	loaded map[string]*lua.LFunction // by the sum

	rounds bool        // it has the times of miniredis, see addTick
	peer   *redis.Peer // that the commands of a script come from
	writer *bufio.Writer
	reply  bytes.Buffer
	reader *bufio.Reader
}

// nested is a command that a script of miniredis calls at the beginning: a peer of that kind has the lock of the
// server, and does not take it again.
const nested = "SIM.NESTED"

func newScripts(r *miniredis.Miniredis) *scripts {
	s := &scripts{redis: r, known: make(map[string]string), loaded: make(map[string]*lua.LFunction)}
	s.writer, s.reader = bufio.NewWriter(&s.reply), bufio.NewReader(&s.reply)
	s.peer = redis.NewPeer(s.writer)
	s.state = newState()
	module := s.state.NewTable()
	for name, f := range map[string]lua.LGFunction{
		"call":        func(l *lua.LState) int { return s.call(l, false) },
		"pcall":       func(l *lua.LState) int { return s.call(l, true) },
		"error_reply": errorReply,
	} {
		module.RawSetString(name, s.state.NewFunction(f))
	}
	for _, name := range []string{"redis", "KEYS", "ARGV"} {
		s.state.SetGlobal(name, module)
	}
	if err := s.state.DoString(strict); err != nil {
		panic(err)
	}
	return s
}

// strict refuses global variables, as Redis does. A state serves many calls.
const strict = `
local function refuse(_, name) error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2) end
setmetatable(_G, {__index = refuse, __newindex = refuse})
`

// newState has the parts of Lua that scripts may use.
func newState() *lua.LState {
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	return l
}

// run answers EVALSHA and EVAL, and returns the text of the script.
func (s *scripts) run(c *redis.Peer, cmd string, args []string) (text string) {
	if len(args) < 2 {
		c.WriteError("ERR wrong number of arguments for '" + strings.ToLower(cmd) + "' command")
		return ""
	}
	n, err := strconv.Atoi(args[1])
	if err != nil || n < 0 || n > len(args)-2 {
		c.WriteError("ERR Number of keys can't be greater than number of args")
		return ""
	}
	s.redis.Lock()
	defer s.redis.Unlock()
	sum := args[0]
	if cmd == "EVAL" {
		h := sha1.Sum([]byte(args[0]))
		sum = hex.EncodeToString(h[:])
		s.known[sum] = args[0]
	}
	text, ok := s.known[sum]
	if !ok {
		c.WriteError("NOSCRIPT No matching script. Please use EVAL.")
		return ""
	}
	value, err := s.eval(sum, text, args[2:2+n], args[2+n:])
	if err != nil {
		c.WriteError("ERR Error compiling script (new function): " + err.Error()) // miniredis reports all of them like this
		return ""
	}
	answer(c, value)
	if n > 0 {
		s.tell(args[2:2+n], strings.Join(args[2+n:min(3+n, len(args))], ""))
	}
	return text
}

// look makes saw look at a key that no script has changed.
func (s *scripts) look(key string) {
	s.redis.Lock()
	defer s.redis.Unlock()
	s.tell([]string{key}, "")
}

// tell calls saw; the lock is held.
func (s *scripts) tell(keys []string, by string) {
	if s.saw != nil {
		s.saw(keys, by, s.read)
	}
}

// reader is a command that reads a key, while nothing else runs. It returns nil if the key holds something else.
type reader func(args ...string) any

// read is a reader; the lock is held.
func (s *scripts) read(args ...string) any {
	v, err := s.dispatch(args)
	if err != nil {
		return nil
	}
	return v
}

// dispatch makes miniredis run a command; the lock is held.
func (s *scripts) dispatch(args []string) (any, error) {
	s.redis.Server().Dispatch(s.peer, args)
	_ = s.writer.Flush() // to memory
	v, err := redis.ParseReply(s.reader)
	s.reply.Reset()
	s.reader.Reset(&s.reply)
	return v, err
}

func (s *scripts) eval(sum, text string, keys, args []string) (lua.LValue, error) {
	l := s.state
	f := s.loaded[sum]
	if f == nil {
		if s.change != nil {
			text = s.change(text)
		}
		proto, err := compile(text)
		if err != nil {
			return nil, err
		}
		f = l.NewFunctionFromProto(proto)
		s.loaded[sum] = f
	}
	l.SetGlobal("KEYS", list(l, keys))
	l.SetGlobal("ARGV", list(l, args))
	defer l.SetTop(0)
	l.Push(f)
	if err := l.PCall(0, 1, nil); err != nil {
		return nil, fmt.Errorf("%w", err)
	}
	return l.Get(-1), nil
}

var compiled sync.Map // scripts, by their texts

func compile(text string) (*lua.FunctionProto, error) {
	if known, ok := compiled.Load(text); ok {
		return known.(*lua.FunctionProto), nil //nolint:errcheck // there is nothing else in it
	}
	chunk, err := parse.Parse(strings.NewReader(text), "<string>")
	if err != nil {
		return nil, fmt.Errorf("%w", err)
	}
	proto, err := lua.Compile(chunk, "")
	if err != nil {
		return nil, fmt.Errorf("%w", err)
	}
	compiled.Store(text, proto)
	return proto, nil
}

// forget is SCRIPT FLUSH.
func (s *scripts) forget() {
	s.redis.Lock()
	defer s.redis.Unlock()
	clear(s.known)
}

// call is redis.call, or redis.pcall if safe is set.
func (s *scripts) call(l *lua.LState, safe bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		switch v := l.Get(i + 1).(type) {
		case lua.LNumber:
			args[i] = v.String()
		case lua.LString:
			args[i] = string(v)
		default:
			l.RaiseError("Lua redis lib command arguments must be strings or integers")
		}
	}
	if !s.rounds {
		addTick(args)
	}
	v, err := s.dispatch(args)
	v = s.uncounted.hide(args, v)
	if left, ok := v.(int); ok && !s.rounds && strings.EqualFold(args[0], "pttl") && left > 0 {
		v = left - 1
	}
	switch {
	case err == nil:
		l.Push(value(l, v))
	case safe:
		failed := l.NewTable()
		failed.RawSetString("err", lua.LString(err.Error()))
		l.Push(failed)
	default:
		l.Error(lua.LString(err.Error()), 1)
	}
	return 1
}

// hide takes those from a reply that the server does not count.
func (u Uncounted) hide(args []string, reply any) any {
	hidden := func(channel string) bool {
		if u != half {
			return u == everybody
		}
		id := channel[strings.LastIndexByte(channel, ':')+1:]
		return len(id) == 36 && id[35] < '8'
	}
	switch strings.ToLower(args[0]) {
	case "publish", "spublish":
		if hidden(args[1]) {
			return 0
		}
	case "pubsub":
		if counts, ok := reply.([]any); ok {
			for i := 1; i < len(counts); i += 2 {
				if hidden(args[1+(i+1)/2]) {
					counts[i] = 0
				}
			}
		}
	}
	return reply
}

// addTick makes an expiry work as in Redis, whose clock has milliseconds: a key exists until it is later than its
// time. In miniredis it is gone at that time.
func addTick(args []string) {
	at := len(args) - 1
	switch {
	case strings.EqualFold(args[0], "pexpire"):
	case strings.EqualFold(args[0], "set") && at > 1 && strings.EqualFold(args[at-1], "px"):
	default:
		return
	}
	if ms, err := strconv.ParseInt(args[at], 10, 64); err == nil && ms > 0 && ms < 1<<53 {
		args[at] = strconv.FormatInt(ms+1, 10)
	}
}

func errorReply(l *lua.LState) int {
	text := l.CheckString(1)
	if !strings.Contains(text, " ") {
		text = "ERR " + text
	}
	t := l.NewTable()
	t.RawSetString("err", lua.LString(text))
	l.Push(t)
	return 1
}

func list(l *lua.LState, texts []string) *lua.LTable {
	t := l.CreateTable(len(texts), 0)
	for _, text := range texts {
		t.Append(lua.LString(text))
	}
	return t
}

// value converts a reply to Lua.
func value(l *lua.LState, reply any) lua.LValue {
	switch v := reply.(type) {
	case nil:
		return lua.LFalse
	case int:
		return lua.LNumber(v)
	case string:
		return lua.LString(v)
	case redis.Simple:
		t := l.NewTable()
		t.RawSetString("ok", lua.LString(v))
		return t
	case []any:
		t := l.CreateTable(len(v), 0)
		for _, e := range v {
			t.Append(value(l, e))
		}
		return t
	}
	panic(fmt.Sprintf("sim: a reply of type %T", reply))
}

// answer replies with a script's result.
func answer(c *redis.Peer, v lua.LValue) {
	switch v := v.(type) {
	case lua.LBool:
		if v {
			c.WriteInt(1)
		} else {
			c.WriteNull()
		}
	case lua.LNumber:
		c.WriteInt(int(v))
	case lua.LString:
		c.WriteBulk(string(v))
	case *lua.LTable:
		if s := v.RawGetString("err"); s != lua.LNil {
			c.WriteError(s.String())
			return
		}
		if s := v.RawGetString("ok"); s != lua.LNil {
			c.WriteInline(s.String())
			return
		}
		c.WriteLen(v.Len())
		for i := 1; i <= v.Len(); i++ {
			answer(c, v.RawGetInt(i))
		}
	default:
		c.WriteNull()
	}
}
