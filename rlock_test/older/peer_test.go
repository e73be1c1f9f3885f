package older

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// build builds the peer program with the current library.
func build(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "peer")
	goBuild(t, ".", append(raceFlags(), "-o", program, "./peer"))
	return program
}

// buildOlder builds the peer program with the library of an older commit.
func buildOlder(t *testing.T, v version) (program string) {
	t.Helper()
	dir := t.TempDir()
	git := exec.Command("git", "archive", "--format=tar", v.commit, "go.mod", "go.sum", "rlock", "lua", "pubsub", "lease", "internal")
	git.Dir = filepath.Join("..", "..")
	archive, err := git.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = errors.New(strings.TrimSpace(string(failed.Stderr)))
		}
		t.Fatalf("commit %.10s is needed, an older version of this library: run this test in a git clone with the whole history "+
			"(git fetch --unshallow): %v", v.commit, err)
	}
	unpack(t, archive, dir)
	require.NoError(t, os.CopyFS(filepath.Join(dir, "peer"), os.DirFS("peer")))
	program = filepath.Join(dir, "peer", "peer")
	goBuild(t, dir, []string{"-tags=" + v.tags, "-o", program, "./peer"}, "GOWORK=off")
	return program
}

func goBuild(t *testing.T, dir string, args []string, env ...string) {
	t.Helper()
	cmd := exec.Command("go", append([]string{"build"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, string(said))
}

func unpack(t *testing.T, archive []byte, dir string) {
	t.Helper()
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		file, err := files.Next()
		if err == io.EOF {
			return
		}
		require.NoError(t, err)
		path := filepath.Join(dir, filepath.FromSlash(file.Name))
		switch file.Typeflag {
		case tar.TypeDir:
			require.NoError(t, os.MkdirAll(path, 0o755))
		case tar.TypeReg:
			text, err := io.ReadAll(files)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, text, 0o600))
		}
	}
}

// patience bounds all other waits. It is shorter than the peers' watchdog time, for which a waiter that missed
// an unlock would sleep.
const patience = 15 * time.Second

// peer is a process that takes locks, see peer/main.go.
type peer struct {
	*exec.Cmd
	name  string
	stdin io.WriteCloser
	ended chan struct{} // closed at EOF of stdout

	mu      sync.Mutex // guards the following
	answers map[string]chan string
	last    int // ID
}

// start runs a peer on these servers until the test ends.
func start(t *testing.T, program, name string, addrs []string) *peer {
	t.Helper()
	p := &peer{Cmd: exec.Command(program, strings.Join(addrs, ",")), name: name, answers: make(map[string]chan string), ended: make(chan struct{})}
	p.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")) // otherwise the race runtime sleeps for a second at exit
	var stderr bytes.Buffer
	p.Stderr = &stderr
	var err error
	p.stdin, err = p.StdinPipe()
	require.NoError(t, err)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	ready := p.answer("-")
	require.NoError(t, p.Start())
	go func() { // ends with the peer
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			id, text, _ := strings.Cut(lines.Text(), " ")
			p.answer(id) <- text
		}
	}()
	t.Cleanup(func() {
		_ = p.stdin.Close()
		p.gone(t)
		require.Empty(t, stderr.String(), "stderr of %s", name)
	})
	require.Equal(t, "ready", p.await(t, ready))
	return p
}

// gone waits for the peer to exit.
func (p *peer) gone(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
		_ = p.Wait()
	case <-time.After(patience):
		require.FailNow(t, "the peer did not exit", p.name)
	}
}

func (p *peer) answer(id string) chan string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers[id] == nil {
		p.answers[id] = make(chan string, 2)
	}
	return p.answers[id]
}

// tell sends a command and returns its ID.
func (p *peer) tell(t *testing.T, command string, words ...string) (id string) {
	t.Helper()
	p.mu.Lock()
	p.last++
	id = strconv.Itoa(p.last)
	p.mu.Unlock()
	p.tellAs(t, command, id, words...)
	return id
}

func (p *peer) tellAs(t *testing.T, command, id string, words ...string) {
	t.Helper()
	_, err := fmt.Fprintln(p.stdin, command, id, strings.Join(words, " "))
	require.NoError(t, err)
}

func (p *peer) await(t *testing.T, answer chan string) string {
	t.Helper()
	select {
	case text := <-answer:
		return text
	case <-time.After(patience):
		require.FailNow(t, "no answer", "of the peer %s", p.name)
		panic("unreachable")
	}
}

// ask sends a command and returns the reply.
func (p *peer) ask(t *testing.T, command string, words ...string) string {
	t.Helper()
	return p.await(t, p.answer(p.tell(t, command, words...)))
}

// section is a peer's section, or its wait for one.
type section struct {
	*peer
	id string
}

// lock makes a peer lock, without waiting for the result.
func (p *peer) lock(t *testing.T, kind, name string) section {
	t.Helper()
	return section{p, p.tell(t, "lock", kind, name)}
}

// in waits for the section to begin, and returns its token.
func (s section) in(t *testing.T) (token int64) {
	t.Helper()
	text := s.await(t, s.answer(s.id))
	_, err := fmt.Sscanf(text, "locked %d", &token)
	require.NoError(t, err, "%s: %s", s.name, text)
	return token
}

// requireOut requires that the section has not begun.
func (s section) requireOut(t *testing.T) {
	t.Helper()
	select {
	case text := <-s.answer(s.id):
		require.FailNow(t, "not excluded", "%s: %s", s.name, text)
	default:
	}
}

func (s section) unlock(t *testing.T) {
	t.Helper()
	s.tellAs(t, "unlock", s.id)
	require.Equal(t, "unlocked", s.await(t, s.answer(s.id)), s.name)
}

// grants returns how many locks other processes have handed to the peer so far.
func (p *peer) grants(t *testing.T) (n int) {
	t.Helper()
	_, err := fmt.Sscanf(p.ask(t, "grants"), "grants %d", &n)
	require.NoError(t, err)
	return n
}
