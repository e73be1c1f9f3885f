//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/internal/testing/doctest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	projectRoot = "../.."
	docsRedis   = "127.0.0.1:6379" // in the pages
	docsClient  = "9b1f0c1e"       // a Client's id in the pages; here a waiting Client's
)

// shellLine is a command in a page.
type shellLine struct{ at, text string }

// shellLines returns the lines of sh blocks, and those after a prompt in transcripts. A line that ends with \ continues on the next.
func shellLines(blocks []doctest.Block) (all []shellLine) {
	for _, b := range blocks {
		if b.Lang != "sh" && b.Lang != "console" {
			continue
		}
		line, whole := b.Line, ""
		for part := range strings.Lines(b.Text) {
			line++
			part = strings.TrimSpace(part)
			if begun, more := strings.CutSuffix(part, "\\"); more {
				whole += begun
				continue
			}
			text, prompted := strings.CutPrefix(whole+part, "$ ")
			whole = ""
			if text != "" && !strings.HasPrefix(text, "#") && (prompted || b.Lang == "sh") {
				all = append(all, shellLine{fmt.Sprintf("%s:%d", b.Page, line-1), text})
			}
		}
	}
	return all
}

// elsewhere are lines that need more than a Redis and this program. They are checked as far as possible.
var elsewhere = []struct {
	form  *regexp.Regexp
	check func(m []string) error
}{
	// .ci/run runs these; users run them as needed.
	{regexp.MustCompile(`^make ([a-z-]+)`), func(m []string) error {
		text, err := os.ReadFile(filepath.Join(projectRoot, "Makefile"))
		if err == nil && !strings.Contains(string(text), "\n"+m[1]+":") {
			err = errors.New("the Makefile has no such target")
		}
		return err
	}},
	// They need a release.
	{regexp.MustCompile(`^go (?:get|install|run) (?:-\S+ )*github\.com/go-rlock/rlock(\S*?)(?:@\S+)?(?: .*)?$`), func(m []string) error {
		_, err := os.Stat(filepath.Join(projectRoot, m[1]))
		return err
	}},
	// The tests of these folders run them; TestDemo runs the demo.
	{regexp.MustCompile(`^(?:cd (\S+) && )?go (?:run|test|vet|build) (.*)$`), func(m []string) error {
		dir := filepath.Join(projectRoot, m[1])
		for word := range strings.FieldsSeq(". " + m[2]) {
			if word == "#" {
				break
			}
			if path := strings.TrimSuffix(word, "..."); strings.HasPrefix(path, ".") {
				if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
					return err
				}
			}
		}
		return nil
	}},
	{regexp.MustCompile(`^rlock demo`), func([]string) error { return nil }},
	// They need the network.
	{regexp.MustCompile(`^(docker|git clone) `), func([]string) error { return nil }},
}

// outcomes are lines with another result than success, or with required output.
var outcomes = []struct {
	form *regexp.Regexp
	code int
	says string
}{
	{regexp.MustCompile(`^rlock unlock -force`), exitUsage, "no terminal to ask at"}, // TestUnlockAsks is at one
	{regexp.MustCompile(`^rlock doctor.* -acl-user`), 0, "ok\trights"},
	{regexp.MustCompile(`; echo \$\?$`), 0, fmt.Sprint(exitNotAcquired)},
}

var (
	crontab   = regexp.MustCompile(`^(?:[0-9*/,-]+ +){5}(.*)$`)
	refused   = regexp.MustCompile(`(?m)^(\(error\) )?(ERR|NOPERM|NOAUTH|WRONGTYPE) `)
	comment   = regexp.MustCompile(` +# .*$`)
	endless   = regexp.MustCompile(`^rlock watch `)
	untilFree = regexp.MustCompile(`^rlock run -v (\S+) `)
)

// market is the world in which the lines run: a Redis with held and contended locks, and commands to run under a lock.
type market struct {
	t       *testing.T
	dir     string
	redis   *redistest.Server
	holder  *rlock.Client
	clients *strings.Replacer // replaces a page's names by this world's
}

func newMarket(t *testing.T) *market {
	t.Helper()
	s := &market{t: t, dir: t.TempDir(), redis: redistest.Start(t)}
	s.holder = newLocks(t, s.redis.Client(t))
	waits := newLocks(t, s.redis.Client(t))
	lock(t.Context(), t, s.holder.FencedMutex("invoices"))
	waitFor(t, waits, waits.FencedMutex("invoices"))
	lock(t.Context(), t, s.holder.Mutex("upload:7", rlock.WithAsked()))
	redistest.Eventually(t, patience, func() bool {
		heard, err := waits.Ask(t.Context(), "upload:7")
		return err == nil && heard
	}, "it can be asked")
	workers := s.holder.PermitSemaphore("workers")
	require.NoError(t, workers.SetPermits(t.Context(), 3))
	_, _, err := workers.Acquire(t.Context())
	require.NoError(t, err)
	_, err = s.holder.Semaphore("gpus").TrySetPermits(t.Context(), 4)
	require.NoError(t, err)
	_, err = s.holder.CountDownLatch("import:2026-11-24").TrySetCount(t.Context(), 3)
	require.NoError(t, err)
	cli, err := exec.LookPath("redis-cli")
	require.NoError(t, err, "redis-cli comes with Redis")
	_, port, _ := strings.Cut(s.redis.Addr(), ":")
	for name, does := range map[string]string{
		"redis-cli": "exec " + cli + " -p " + port + ` "$@"`, "report": "", "rebuild": "", "nightly": "",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), []byte("#!/bin/sh\n"+does+"\n"), 0o700))
	}
	s.clients = strings.NewReplacer("record -for 12h", "record -for 1s", docsRedis, s.redis.Addr(), docsClient, waits.ID()[:len(docsClient)], "/usr/local/bin", s.dir)
	return s
}

// hold locks a name, whatever earlier lines did to it, and returns its release.
func (s *market) hold(name string) (release func()) {
	_, unlock, err := s.holder.Mutex(name).TryLock(s.t.Context(), patience)
	require.NoError(s.t, err)
	return func() { _ = unlock() } // a line may have force-unlocked it
}

// run runs a line, or checks it if it cannot be run here.
func (s *market) run(text string) error {
	bare := comment.ReplaceAllString(text, "")
	for _, e := range elsewhere {
		if m := e.form.FindStringSubmatch(bare); m != nil {
			return e.check(m)
		}
	}
	if m := crontab.FindStringSubmatch(text); m != nil {
		text = m[1]
	}
	defer s.hold("order:42")()
	defer s.hold("catalogue")()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", s.clients.Replace(text))
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "REDIS_URL="+s.redis.Addr(), "PATH="+s.dir+":"+filepath.Dir(binary)+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = patience
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	if m := untilFree.FindStringSubmatch(text); m != nil {
		redistest.Eventually(s.t, patience, func() bool { return strings.Contains(out.String(), "waiting") }, "it waits")
		_, err := s.holder.Mutex(m[1]).ForceUnlock(ctx)
		require.NoError(s.t, err)
	}
	if endless.MatchString(text) {
		redistest.Eventually(s.t, patience, func() bool { return bytes.ContainsRune([]byte(out.String()), '\n') }, "a first line")
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		_ = cmd.Wait() // the shell exits with the signal's code
		return nil
	}
	_ = cmd.Wait() // the code tells
	code, says := 0, ""
	for _, o := range outcomes {
		if o.form.MatchString(bare) {
			code, says = o.code, o.says
		}
	}
	switch got := exitCode(cmd.ProcessState); {
	case got != code:
		return fmt.Errorf("exit code %d, want %d: %s", got, code, out.String())
	case refused.MatchString(out.String()), !strings.Contains(out.String(), says):
		return fmt.Errorf("it says %s", out.String())
	}
	return nil
}

// Every shell line in README.md and docs runs, in the order of the page, against one Redis.
func TestShellLinesOfTheDocs(t *testing.T) {
	t.Parallel()
	blocks, err := doctest.Blocks(projectRoot)
	require.NoError(t, err)
	lines := shellLines(blocks)
	require.Greater(t, len(lines), 20)
	s := newMarket(t)
	for _, line := range lines {
		require.NoError(t, s.run(line.text), "%s: %s", line.at, line.text)
	}
}

func TestBrokenShellLinesAreFound(t *testing.T) {
	t.Parallel()
	require.Equal(t, []shellLine{{"p:4", "a b"}, {"p:6", "c"}, {"p:8", "d"}}, shellLines([]doctest.Block{
		{Page: "p", Line: 3, Lang: "sh", Text: "a \\\nb\n\nc\n# x\n"}, {Page: "p", Line: 7, Lang: "console", Text: "e\n$ d\n"},
		{Page: "p", Line: 9, Lang: "text", Text: "$ f\n"},
	}))
	s := newMarket(t)
	for line, want := range map[string]string{
		"rlock ls":                                            "",
		"* * * * * rlock run a -- true":                       "",
		"make demo   # see":                                   "",
		"go get github.com/go-rlock/rlock":                    "",
		"go run github.com/go-rlock/rlock/cmd/rlock@v1 demo":  "",
		"cd bench && go run . -h":                             "",
		"rlock lss":                                           "exit code 2",
		"rlock show nobody-has-it":                            "exit code 1",
		"nothing-like-that":                                   "exit code 127",
		"redis-cli NOTHING":                                   "it says ERR unknown",
		"redis-cli PING | grep PANG":                          "exit code 1",
		"make nothing":                                        "no such target",
		"go install github.com/go-rlock/rlock/nothing@latest": "no such file",
		"go run ./nothing":                                    "no such file",
		"cd nothing && go test ./...":                         "no such file",
	} {
		err := s.run(line)
		if want == "" {
			require.NoError(t, err, line)
		} else {
			require.ErrorContains(t, err, want, line)
		}
	}
}

// The ACL in docs/operating.md suffices for locks of all kinds, on one server, with sentinels and on a cluster.
func TestACLOfTheDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(projectRoot, "docs", "operating.md"))
	require.NoError(t, err)
	blocks, err := doctest.Blocks(projectRoot)
	require.NoError(t, err)
	var acl []string
	for _, line := range shellLines(blocks) {
		if words, ok := strings.CutPrefix(line.text, "redis-cli ACL SETUSER shop "); ok {
			acl = strings.Fields(strings.ReplaceAll(words, "'", ""))
		}
	}
	require.NotEmpty(t, acl)
	with := func(after string) []string { // and the rights of a table row
		more := regexp.MustCompile(regexp.QuoteMeta("| "+after+" |") + " `([^`]+)`").FindStringSubmatch(string(text))
		require.NotNil(t, more, after)
		return append(slices.Clone(acl), strings.Fields(strings.ReplaceAll(more[1], "'", ""))...)
	}
	as := func(o *rueidis.ClientOption) { o.Username, o.Password = "shop", "secret" }
	allow := func(s *redistest.Server, rights []string) {
		c := s.Client(t, redistest.Single)
		require.NoError(t, c.Do(t.Context(), c.B().Arbitrary("ACL", "SETUSER", "shop").Args(rights...).Build()).Error())
	}
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		allow(s, acl)
		requireAllKinds(t, "%s", func() rueidis.Client { return s.Client(t, as) })
		requireDoctor(t, s.Addr())
	})
	t.Run("asked", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		allow(s, with("`WithAsked`, `WithLinger` and their waiters, `Options.Deadlock`"))
		holder, waits := newLocks(t, s.Client(t, as)), newLocks(t, s.Client(t, as))
		ctx, _ := lock(t.Context(), t, holder.Mutex("shop:asked", rlock.WithAsked()))
		redistest.Eventually(t, patience, func() bool {
			heard, err := waits.Ask(t.Context(), "shop:asked")
			return err == nil && heard
		}, "it can be asked")
		<-rlock.Asked(ctx)
	})
	t.Run("names with braces", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		allow(s, with("names that contain braces"))
		requireAllKinds(t, "{%s}", func() rueidis.Client { return s.Client(t, as) })
	})
	t.Run("sentinels", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t)
		for _, n := range s.Nodes() {
			allow(n, acl)
		}
		requireAllKinds(t, "%s", func() rueidis.Client { return s.Client(t, as) })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		cluster := redistest.StartCluster(t, 3, 0)
		for _, s := range cluster.Nodes() {
			allow(s, acl)
		}
		requireAllKinds(t, "%s", func() rueidis.Client { return cluster.Client(t, as) })
		requireDoctor(t, cluster.Addrs()[0])
	})
}

// requireDoctor checks that the doctor can try locks as the user of docs/operating.md.
func requireDoctor(t *testing.T, addr string) {
	t.Helper()
	r := call(t, "redis://shop:secret@"+addr, "doctor", "-json", "-prefix", "shop:")
	require.Zero(t, r.code, r.out)
	got := statuses(diagnosis(t, r))
	for _, check := range []string{"scripts", "lock", "pub/sub", "wake"} {
		require.Equal(t, "ok", got[check], r.out)
	}
}

// requireAllKinds uses locks of all kinds, with two processes one after the other.
func requireAllKinds(t *testing.T, name string, dial func() rueidis.Client) {
	t.Helper()
	var clients [2]*rlock.Client
	for i := range clients {
		clients[i] = newLocks(t, dial(), rlock.Options{Prefix: "shop:"})
	}
	for kind, of := range map[string]func(c *rlock.Client) *rlock.Mutex{
		"mutex":  func(c *rlock.Client) *rlock.Mutex { return c.Mutex(fmt.Sprintf(name, "mutex")) },
		"fenced": func(c *rlock.Client) *rlock.Mutex { return c.FencedMutex(fmt.Sprintf(name, "fenced")) },
		"fair":   func(c *rlock.Client) *rlock.Mutex { return c.FairMutex(fmt.Sprintf(name, "fair")) },
		"read":   func(c *rlock.Client) *rlock.Mutex { return c.RWMutex(fmt.Sprintf(name, "read")).Read() },
		"write":  func(c *rlock.Client) *rlock.Mutex { return c.RWMutex(fmt.Sprintf(name, "write")).Write() },
	} {
		round := func() {
			_, unlock, err := of(clients[0]).Lock(t.Context())
			require.NoError(t, err, kind)
			if kind != "read" {
				held := waitFor(t, clients[1], of(clients[1]))
				redistest.Eventually(t, patience, func() bool {
					info, err := of(clients[0]).Info(t.Context())
					return err == nil && len(info.Queue) == 1
				}, "it has its place")
				require.NoError(t, unlock(), kind)
				<-held
			} else {
				require.NoError(t, unlock(), kind)
			}
			_, err = of(clients[0]).Info(t.Context())
			require.NoError(t, err, kind)
			_, err = of(clients[0]).IsLocked(t.Context())
			require.NoError(t, err, kind)
			_, err = of(clients[1]).ForceUnlock(t.Context())
			require.NoError(t, err, kind)
		}
		if kind == "read" || kind == "write" {
			round()
			continue
		}
		// A user without rights to the queue gets no grants. On a busy machine a grant may be too old to be used without asking.
		before := clients[1].Stats().Grants
		redistest.Eventually(t, patience, func() bool {
			round()
			return clients[1].Stats().Grants > before
		}, kind+": a grant is used")
	}
	latch := clients[0].CountDownLatch(fmt.Sprintf(name, "latch"))
	_, err := latch.TrySetCount(t.Context(), 1)
	require.NoError(t, err)
	opened := begin(t, clients[1], clients[1].CountDownLatch(latch.Name()).Await)
	require.NoError(t, latch.CountDown(t.Context()))
	require.NoError(t, <-opened)
	_, err = latch.Delete(t.Context())
	require.NoError(t, err)
	_, err = latch.Count(t.Context())
	require.NoError(t, err)
	for kind, of := range map[string]func(c *rlock.Client, name string) rlock.Locker{
		"semaphore": func(c *rlock.Client, name string) rlock.Locker { return c.Semaphore(name).Locker(1) },
		"permits":   func(c *rlock.Client, name string) rlock.Locker { return c.PermitSemaphore(name).Locker(1) },
	} {
		name := fmt.Sprintf(name, kind)
		_, err := clients[0].Semaphore(name).TrySetPermits(t.Context(), 1)
		require.NoError(t, err, kind)
		_, release, err := of(clients[0], name).Lock(t.Context())
		require.NoError(t, err, kind)
		var next rlock.UnlockFunc
		got := begin(t, clients[1], func(ctx context.Context) (err error) {
			_, next, err = of(clients[1], name).Lock(ctx)
			return err
		})
		require.NoError(t, release(), kind)
		require.NoError(t, <-got, kind)
		require.NoError(t, next(), kind)
	}
	_, err = clients[0].PermitSemaphore(fmt.Sprintf(name, "permits")).Permits(t.Context())
	require.NoError(t, err)
	up := clients[0].RWMutex(fmt.Sprintf(name, "up")).Upgradeable()
	require.NoError(t, up.Do(t.Context(), func(ctx context.Context) error {
		return up.UpgradeDo(ctx, func(context.Context) error { return nil })
	}))
}

// docs/cli.md lists every field that -json prints.
func TestJSONFieldsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(projectRoot, "docs", "cli.md"))
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(text), "\n## JSON\n")
	for _, printed := range []any{state{}, holder{}, permit{}, view{}, wanted{}, standstill{}, deadlock.SeenHold{}, change{}, finding{}, heading{}, event{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(printed)) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				require.Contains(t, section, "`"+name+"`")
			}
		}
	}
}

// docs/servers.md names the Go versions that go.mod allows and with which CI runs.
func TestSupportNamesTheGoVersions(t *testing.T) {
	t.Parallel()
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(projectRoot, file))
		require.NoError(t, err)
		return string(text)
	}
	find := func(pattern, text string) string {
		m := regexp.MustCompile(pattern).FindStringSubmatch(text)
		require.NotNil(t, m, pattern)
		return m[1]
	}
	version := func(module string) string { return find(`(?m)^go (\S+)$`, read(filepath.Join(module, "go.mod"))) }
	page, newest := read("docs/servers.md"), find(`(?m)^GO_NEWEST *= *go(\S+)$`, read("Makefile"))
	minor := func(version string) string { return find(`^(\d+\.\d+)`, version) }
	require.Contains(t, page, fmt.Sprintf("| Go | %s to %s; `rlockvet` and `adapters/certmagic` from %s.", minor(version(".")), minor(newest), minor(version("rlockvet"))))
	require.Contains(t, page, fmt.Sprintf("%s, and %s in `rlockvet`'s and `adapters/certmagic`'s", version("."), version("rlockvet")))
	require.Contains(t, page, "**The newest** is "+newest+",")
	require.Equal(t, version("rlockvet"), version("adapters/certmagic"))
	for _, module := range []string{"cmd/rlock", "rlockgoredis", "rlockotel", "rlocktest", "adapters/gocron", "adapters/tusd"} {
		require.Equal(t, version("."), version(module), module)
	}
}
