package memory

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"

	json "github.com/alicebob/miniredis/v2/gopher-json"
	"github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// script is a script that a server knows.
type script struct {
	text string // as the client sent it
	code *lua.FunctionProto
}

// eval answers EVAL and EVALSHA. miniredis makes a new Lua state for each call, which takes most of the time of a test: here the calls of
// all servers share a few. The commands that a script calls are miniredis's own.
func (s *Server) eval(c *server.Peer, cmd string, args []string) (done bool) {
	if len(args) < 2 {
		c.WriteError("ERR wrong number of arguments for '" + strings.ToLower(cmd) + "' command")
		return true
	}
	n, err := strconv.Atoi(args[1])
	if err != nil || n < 0 || n > len(args)-2 {
		c.WriteError("ERR Number of keys can't be greater than number of args")
		return true
	}
	s.mu.Lock()
	queued := s.multi[c]
	s.mu.Unlock()
	if queued {
		return s.queue(c, cmd, args)
	}
	text := s.run(c, cmd, args[0], args[2:2+n], args[2+n:])
	if s.options.Ran != nil && text != "" {
		s.options.Ran(text, cmd, args)
	}
	return true
}

// queue makes miniredis run a script, at the end of the transaction.
func (s *Server) queue(c *server.Peer, cmd string, args []string) (done bool) {
	if !strings.HasPrefix(cmd, "EVALSHA") {
		return false
	}
	s.Lock()
	known := s.scripts[args[0]]
	s.Unlock()
	if known == nil {
		return false
	}
	s.Server().Dispatch(c, append([]string{strings.Replace(cmd, "EVALSHA", "EVAL", 1), known.text}, args[1:]...))
	return true
}

// run runs a script, and returns its text, "" if the server does not know it.
func (s *Server) run(c *server.Peer, cmd, sum string, keys, args []string) (text string) {
	s.Lock()
	defer s.Unlock()
	known := s.scripts[sum]
	if !strings.HasPrefix(cmd, "EVALSHA") {
		var err error
		if known, err = s.learn(sum); err != nil {
			c.WriteError(failed(err))
			return ""
		}
	}
	if known == nil {
		c.WriteError("NOSCRIPT No matching script. Please use EVAL.")
		return ""
	}
	state := takeState()
	state.server, state.readOnly = s, strings.HasSuffix(cmd, "_RO")
	v, err := state.run(known.code, keys, args)
	if err != nil {
		c.WriteError(failed(err))
	} else {
		answer(c, v)
	}
	state.giveBack()
	if s.options.Saw != nil && err == nil && len(keys) > 0 {
		s.options.Saw(keys, strings.Join(args[:min(1, len(args))], ""), s.do)
	}
	return known.text
}

// failed is what miniredis says of a script that does not compile, and of one that fails.
func failed(err error) string { return "ERR Error compiling script (new function): " + err.Error() }

// learn makes the server know a script; the lock is held.
func (s *Server) learn(text string) (*script, error) {
	h := sha1.Sum([]byte(text))
	sum := hex.EncodeToString(h[:])
	known := s.scripts[sum]
	if known != nil {
		return known, nil
	}
	changed := text
	if s.options.Change != nil {
		changed = s.options.Change(text)
	}
	code, err := compile(changed)
	if err != nil {
		return nil, err
	}
	known = &script{text, code}
	s.scripts[sum] = known
	return known, nil
}

// script answers SCRIPT.
func (s *Server) script(c *server.Peer, args []string) (done bool) {
	if len(args) == 0 {
		return false
	}
	s.Lock()
	defer s.Unlock()
	switch sub := strings.ToUpper(args[0]); {
	case sub == "LOAD" && len(args) == 2:
		_, _ = s.learn(args[1]) // miniredis tells of the error
	case sub == "FLUSH":
		clear(s.scripts)
	case sub == "EXISTS" && len(args) > 1:
		c.WriteLen(len(args) - 1)
		for _, sum := range args[1:] {
			n := 0
			if s.scripts[sum] != nil {
				n = 1
			}
			c.WriteInt(n)
		}
		return true
	}
	return false
}

var compiled sync.Map // code, by its text

func compile(text string) (*lua.FunctionProto, error) {
	if known, ok := compiled.Load(text); ok {
		return known.(*lua.FunctionProto), nil //nolint:errcheck // there is nothing else in it
	}
	chunk, err := parse.Parse(strings.NewReader(text), "<string>")
	if err != nil {
		return nil, err //nolint:wrapcheck // the client sees it
	}
	code, err := lua.Compile(chunk, "")
	if err != nil {
		return nil, err //nolint:wrapcheck // the client sees it
	}
	compiled.Store(text, code)
	return code, nil
}

// state is a Lua state that runs the scripts of one server at a time.
type state struct {
	lua      *lua.LState
	loaded   map[*lua.FunctionProto]*lua.LFunction
	server   *Server // its lock is held
	readOnly bool    // the script may only read
}

// states are those that run no script.
var states struct {
	mu   sync.Mutex
	free []*state
}

func takeState() *state {
	states.mu.Lock()
	defer states.mu.Unlock()
	last := len(states.free) - 1
	if last < 0 {
		return newState()
	}
	st := states.free[last]
	states.free = states.free[:last]
	return st
}

func (st *state) giveBack() {
	st.lua.SetTop(0)
	st.server = nil
	states.mu.Lock()
	defer states.mu.Unlock()
	states.free = append(states.free, st)
}

// strict refuses global variables, as Redis does. A state serves many calls.
const strict = `
os = {clock = function() return 0 end}
local function refuse(_, name) error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2) end
setmetatable(_G, {__index = refuse, __newindex = refuse})
`

// newState has the parts of Lua that scripts may use.
func newState() *state {
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	st := &state{lua: l, loaded: make(map[*lua.FunctionProto]*lua.LFunction)}
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
		lua.CoroutineLibName: lua.OpenCoroutine,
	} {
		l.Push(l.NewFunction(open))
		l.Push(lua.LString(name))
		l.Call(1, 0)
	}
	l.Push(l.NewFunction(json.Loader))
	l.Call(0, 1)
	l.SetGlobal("cjson", l.Get(-1))
	l.SetTop(0)
	nothing := func(*lua.LState) int { return 0 }
	module := l.NewTable()
	for name, f := range map[string]lua.LGFunction{
		"call":         func(l *lua.LState) int { return st.call(l, false) },
		"pcall":        func(l *lua.LState) int { return st.call(l, true) },
		"error_reply":  errorReply,
		"status_reply": func(l *lua.LState) int { return push(l, "ok", l.CheckString(1)) },
		"sha1hex": func(l *lua.LState) int {
			h := sha1.Sum([]byte(l.CheckString(1)))
			l.Push(lua.LString(hex.EncodeToString(h[:])))
			return 1
		},
		"replicate_commands": func(l *lua.LState) int { l.Push(lua.LTrue); return 1 },
		"log":                nothing, "set_repl": nothing, "setresp": nothing,
	} {
		module.RawSetString(name, l.NewFunction(f))
	}
	for level, name := range []string{"LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"} {
		module.RawSetString(name, lua.LNumber(level))
	}
	for _, name := range []string{"redis", "server", "KEYS", "ARGV"} {
		l.SetGlobal(name, module)
	}
	if err := l.DoString(strict); err != nil {
		panic(err)
	}
	return st
}

func (st *state) run(code *lua.FunctionProto, keys, args []string) (lua.LValue, error) {
	l := st.lua
	f := st.loaded[code]
	if f == nil {
		f = l.NewFunctionFromProto(code)
		st.loaded[code] = f
	}
	l.SetGlobal("KEYS", list(l, keys))
	l.SetGlobal("ARGV", list(l, args))
	l.Push(f)
	if err := l.PCall(0, 1, nil); err != nil {
		return nil, err //nolint:wrapcheck // the client sees it
	}
	return l.Get(-1), nil
}

// call is redis.call, or redis.pcall if safe is set.
func (st *state) call(l *lua.LState, safe bool) int {
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
	if len(args) == 0 {
		l.RaiseError("Please specify at least one argument for this redis lib call")
	}
	s := st.server
	var v any
	var err error
	if st.readOnly && s.Server().IsRegisteredCommand(args[0]) && !s.IsReadOnlyCommand(args[0]) {
		err = errReadOnly
	} else {
		v, err = s.exact(s.dispatch, args)
	}
	switch {
	case err == nil:
		if s.options.Reply != nil {
			v = s.options.Reply(args, v)
		}
		l.Push(value(l, v))
		return 1
	case strings.Contains(err.Error(), "ERR unknown command"):
		err = errUnknown
	}
	if safe {
		return push(l, "err", err.Error())
	}
	l.Error(lua.LString(err.Error()), 1)
	return 0
}

// replyError is an error as the client sees it.
type replyError string

func (e replyError) Error() string { return string(e) }

const (
	errReadOnly replyError = "Write commands are not allowed in read-only scripts"
	errUnknown  replyError = "ERR Unknown Redis command called from script"
)

func errorReply(l *lua.LState) int {
	text := l.CheckString(1)
	if !strings.Contains(text, " ") {
		text = "ERR " + text
	}
	return push(l, "err", strings.TrimPrefix(text, "-"))
}

// push returns a table with one field from a Lua function.
func push(l *lua.LState, name, text string) int {
	t := l.NewTable()
	t.RawSetString(name, lua.LString(text))
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
	case server.Simple:
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
	panic(fmt.Sprintf("rlocktest: a reply of type %T", reply))
}

// answer replies with a script's result.
func answer(c *server.Peer, v lua.LValue) {
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
