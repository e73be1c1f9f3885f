package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// Every connection error has the address, and none has a password.
func TestErrorsNameTheAddressAndNoPassword(t *testing.T) {
	t.Parallel()
	const password = "hush-hush"
	guarded := redistest.Start(t, "--requirepass", "another")
	down := redistest.Start(t)
	down.Stop()
	for name, c := range map[string]struct {
		code      int
		url, says string
	}{
		"down":             {exitInternal, "redis://:" + password + "@" + down.Addr(), down.Addr()},
		"wrong password":   {exitInternal, "redis://:" + password + "@" + guarded.Addr(), guarded.Addr()},
		"wrong user":       {exitInternal, "redis://me:" + password + "@" + guarded.Addr(), guarded.Addr()},
		"no such host":     {exitInternal, "redis://:" + password + "@no.such.host.invalid:1", "no.such.host.invalid:1"},
		"cluster":          {exitInternal, "redis://:" + password + "@" + down.Addr() + "?addr=" + guarded.Addr(), guarded.Addr()},
		"sentinel":         {exitInternal, "redis://:" + password + "@" + down.Addr() + "?master_set=m", down.Addr()},
		"socket":           {exitInternal, "unix://:" + password + "@/no/such.sock", "/no/such.sock"},
		"bad port":         {exitUsage, "redis://:" + password + "@127.0.0.1:port", "redis://user:password@host"},
		"slash in it":      {exitUsage, "redis://u:" + password + "/x@127.0.0.1:1", "redis://user:password@host"},
		"bad escape":       {exitUsage, "redis://u:" + password + "%zz@127.0.0.1:1", "redis://user:password@host"},
		"another scheme":   {exitUsage, "http://u:" + password + "@127.0.0.1:1", "redis://user:password@host"},
		"bad database":     {exitUsage, "redis://127.0.0.1:1/" + password, "redis://user:password@host"},
		"unknown option":   {exitUsage, "redis://:" + password + "@127.0.0.1:1?master-set=mymaster", `no such option after ?: "master-set"; there are addr, `},
		"empty master":     {exitUsage, "redis://:" + password + "@127.0.0.1:1?master_set=", "?master_set is empty"},
		"protocol":         {exitUsage, "redis://:" + password + "@127.0.0.1:1?protocol=7", "?protocol is 2 or 3"},
		"two hosts":        {exitUsage, "redis://:" + password + "@127.0.0.1:1,127.0.0.1:2", "?addr=host:port&addr=host:port"},
		"no unit":          {exitUsage, "redis://:" + password + "@127.0.0.1:1?dial_timeout=1", "?dial_timeout needs a unit, as in 5s"},
		"relative socket":  {exitInternal, "unix://:" + password + "@./no/such.sock", "/no/such.sock"},
		"two slashes":      {exitUsage, "unix://:" + password + "@run/redis.sock", "unix:///run/redis.sock"},
		"no path":          {exitUsage, "unix://:" + password + "@", "needs the path of a socket"},
		"only options":     {exitUsage, "127.0.0.1:1?password=" + password, "redis://"},
		"without a scheme": {exitUsage, "me:" + password + "@127.0.0.1:1", "redis://"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, command := range [][]string{{"show", "job"}, {"ls"}, {"top"}, {"watch", "job"}, {"doctor"},
				{"token", "job"},
				{"unlock", "-force", "-yes", "job"}, {"run", "job", "--", "true"}} {
				r := callWith(t, map[string]string{"REDIS_URL": c.url}, command...)
				require.Equal(t, c.code, r.code, r.err)
				require.Contains(t, r.err, c.says)
				require.NotContains(t, r.err+r.out, password)
				if name != "cluster" { // one server is down, the other refuses: either error may be reported
					nobody := c.code == exitInternal && !strings.HasPrefix(name, "wrong")
					require.Equal(t, nobody, strings.Contains(r.err, "(set the address with -redis URL or REDIS_URL)"), r.err)
				}
				require.Regexp(t, `^rlock: [^\n]*\n$`, r.err)
			}
		})
	}
}

// A server that takes the connection and refuses it is named with the cure that Open names.
func TestErrorsNameTheCure(t *testing.T) {
	t.Parallel()
	resp2 := redistest.StartProxy(t, redistest.Start(t).Addr())
	resp2.OnRequest(redistest.Each("HELLO 3", redistest.Fail("NOPROTO unsupported protocol version")))
	hangsUp := redistest.StartFake(t, redistest.HangsUp)
	alert := redistest.StartFake(t, redistest.Says("\x15\x03\x03\x00\x02\x02\x46"))
	for addr, says := range map[string]string{
		resp2.Addr(): "NOPROTO unsupported protocol version (a server or proxy without RESP3: add ?protocol=2 to the URL",
		hangsUp:      "(it hangs up, as do a server at maxclients, one that wants TLS or a client certificate, a proxy without a server",
		alert:        "(what listens there speaks TLS: use rediss://)",
	} {
		for _, command := range [][]string{{"show", "job"}, {"doctor"}, {"run", "job", "--", "true"}} {
			r := call(t, addr, command...)
			require.Equal(t, exitInternal, r.code, r.err)
			require.Contains(t, r.err, addr)
			require.Contains(t, r.err, says)
			require.Regexp(t, `^rlock: [^\n]*\n$`, r.err)
		}
	}
	require.Equal(t, result{}, call(t, "redis://"+resp2.Addr()+"?protocol=2", "ls"))

	s := redistest.Start(t) // the library names this cure already
	proxy := redistest.StartProxy(t, s.Addr())
	proxy.OnRequest(redistest.Each("SUBSCRIBE", redistest.Fail("ERR unknown command 'SUBSCRIBE'")))
	client := newLocks(t, s.Client(t))
	require.NoError(t, client.Mutex("job").Do(t.Context(), func(context.Context) error {
		r := call(t, proxy.Addr(), "run", "job", "--", "true")
		require.Equal(t, exitInternal, r.code, r.err)
		require.Equal(t, 1, strings.Count(r.err, "(a Lock that waits needs pub/sub: "), r.err)
		return nil
	}))
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--requirepass", "secret")
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
	}{
		"URL":               {map[string]string{"REDIS_URL": "redis://:secret@" + s.Addr(), "REDIS_PASSWORD": "wrong"}, nil},
		"REDIS_PASSWORD":    {map[string]string{"REDIS_URL": "redis://" + s.Addr(), "REDIS_PASSWORD": "secret"}, nil},
		"REDISCLI_AUTH":     {map[string]string{"REDIS_ADDR": s.Addr(), "REDISCLI_AUTH": "secret"}, nil},
		"file":              {map[string]string{"REDIS_PASSWORD": "wrong"}, []string{"-redis", "redis://:wrong@" + s.Addr(), "-password-file", file}},
		"own URL first":     {map[string]string{"RLOCK_REDIS_URL": "redis://:secret@" + s.Addr(), "REDIS_URL": "redis://127.0.0.1:1"}, nil},
		"URL before ADDR":   {map[string]string{"REDIS_URL": "redis://:secret@" + s.Addr(), "REDIS_ADDR": "127.0.0.1:1"}, nil},
		"flag before these": {map[string]string{"REDIS_URL": "redis://127.0.0.1:1"}, []string{"-redis", "redis://:secret@" + s.Addr()}},
	} {
		t.Run(name, func(t *testing.T) {
			r := callWith(t, c.env, append([]string{"ls"}, c.args...)...)
			require.Equal(t, result{}, r)
		})
	}
	r := callWith(t, nil, "ls", "-password-file", file+".no")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.err, "-password-file")
}

func TestCACert(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	addr, ca := redistest.StartTLS(t, s.Addr())
	require.Equal(t, result{}, call(t, addr, "ls", "-cacert", ca))
	require.Equal(t, result{}, call(t, "rediss://"+addr, "ls", "-cacert", ca))
	require.Equal(t, result{}, call(t, "rediss://"+addr+"?skip_verify", "ls"))

	r := call(t, "rediss://"+addr, "ls")
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, addr)
	require.Contains(t, r.err, "certificate")

	r = start(t, hasty, "ls", "-redis", s.Addr(), "-cacert", ca).rest() // which takes the greeting for the start of a command
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, "no answer within 5s (with TLS)")

	r = call(t, addr, "ls", "-cacert", binary)
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.err, "no PEM certificate")
}

func TestClientCertificate(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	addr, cert, key := redistest.StartMutualTLS(t, s.Addr())
	require.Equal(t, result{}, call(t, addr, "ls", "-cacert", cert, "-cert", cert, "-key", key))
	require.Equal(t, result{}, call(t, "rediss://"+addr+"?skip_verify", "ls", "-cert", cert, "-key", key))
	both := filepath.Join(t.TempDir(), "both.pem")
	var text []byte
	for _, file := range []string{cert, key} {
		part, err := os.ReadFile(file)
		require.NoError(t, err)
		text = append(text, part...)
	}
	require.NoError(t, os.WriteFile(both, text, 0o600))
	require.Equal(t, result{}, call(t, addr, "ls", "-cacert", cert, "-cert", both))

	r := call(t, addr, "ls", "-cacert", cert)
	require.Equal(t, exitInternal, r.code)
	require.Contains(t, r.err, "certificate required (give a client certificate with -cert and -key)")
	for says, args := range map[string][]string{
		"-key needs -cert":                    {"-key", key},
		"-cert, -key: open":                   {"-cert", key + ".no"},
		"-cert, -key: tls: ":                  {"-cert", cert},
		"a socket has no TLS: leave them out": {"-redis", "/no/such.sock", "-cert", both},
	} {
		r := call(t, addr, append([]string{"ls"}, args...)...)
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.err, says)
		require.Regexp(t, `^rlock: [^\n]*\n$`, r.err)
	}
}

// A socket may be given as a URL of any form, or as a path.
func TestSockets(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	s := redistest.Start(t, "--unixsocket", path)
	c := s.Client(t)
	require.NoError(t, c.Do(t.Context(), c.B().Set().Key("job").Value("1").Build()).Error())
	here, err := os.Getwd()
	require.NoError(t, err)
	relative, err := filepath.Rel(here, path)
	require.NoError(t, err)
	relative = "./" + relative
	for _, addr := range []string{path, relative, "unix://" + path, "unix:" + path, "unix:" + relative, "unix://" + relative} {
		require.Equal(t, "counter", func() string { v, _ := showJSON(t, addr, "job"); return v.Kind }(), addr)
	}
	for _, addr := range []string{"unix:" + relative + "?db=1", "unix://" + path + "?db=1"} {
		require.Equal(t, exitFree, call(t, addr, "show", "job").code, addr)
	}
}
