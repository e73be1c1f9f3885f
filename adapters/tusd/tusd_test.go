package rlocktusd_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	"golang.org/x/exp/slog"

	rlocktusd "github.com/go-rlock/rlock/adapters/tusd"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	watchdog = 4 * time.Second // longer than a busy machine stalls a process
	soon     = 20 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv("ROLE") != "" {
		process()
		return
	}
	redistest.MainWithExamples(m)
}

// slowStore takes a while to find an upload, as one over a network does. tusd asks it between the Lock and the first read of the body.
type slowStore struct {
	handler.DataStore
	takes time.Duration
}

func (s slowStore) GetUpload(ctx context.Context, id string) (handler.Upload, error) {
	<-time.After(s.takes)
	return s.DataStore.GetUpload(ctx, id)
}

// uploads returns the handler of a process for the uploads in a folder.
func uploads(folder string, client *rlock.Client, patience, finds time.Duration, options ...rlock.Option) (http.Handler, error) {
	composer := handler.NewStoreComposer()
	filestore.New(folder).UseIn(composer)
	composer.UseCore(slowStore{composer.Core, finds})
	rlocktusd.New(client, options...).UseIn(composer)
	h, err := handler.NewHandler(handler.Config{
		BasePath: "/files/", StoreComposer: composer, AcquireLockTimeout: patience, GracefulRequestCompletionTimeout: time.Second,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	return http.StripPrefix("/files/", h), err
}

// process serves the uploads in a folder, and prints its address. If it is asked to end, it closes its locks, and serves on. All of tusd
// runs in such processes: it reads a request's body when it is asked for the lock, and sets it when it writes, without a lock between the
// two (2.9.1), and the race detector would blame the test.
func process() {
	lease, err := time.ParseDuration(os.Getenv("WATCHDOG"))
	check(err)
	client, err := rlock.Open("redis://"+os.Getenv("REDIS"), rlock.Options{WatchdogTimeout: lease})
	check(err)
	patience, err := time.ParseDuration(os.Getenv("PATIENCE"))
	check(err)
	finds, err := time.ParseDuration(os.Getenv("FINDS"))
	check(err)
	var options []rlock.Option
	if finds > early {
		options = append(options, rlock.WithAskedAfter(2*finds))
	}
	h, err := uploads(os.Getenv("FOLDER"), client, patience, finds, options...)
	check(err)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, os.Interrupt)
	go func() { // ends with the process
		<-asked
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_ = client.Shutdown(ctx) // while requests are under way
	}()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	check(err)
	_, _ = fmt.Fprintln(os.Stdout, os.Getenv("ROLE"), l.Addr())
	check(http.Serve(l, h))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// fleet is three processes that serve the same uploads.
type fleet struct {
	t         *testing.T
	redis     *redistest.Server
	processes []*redistest.SelfProcess
	addrs     []string
	folder    string
}

func newFleet(t *testing.T, watchdog time.Duration, redis ...string) *fleet {
	t.Helper()
	return newFleetOf(t, 3, watchdog, time.Minute, redis...)
}

// halfway is an upload of that many parts through the first process, of which one has arrived.
func (f *fleet) halfway(parts int) (data []byte, id string, p *patch) {
	f.t.Helper()
	data = content(parts * part)
	id = create(f.t, f.addrs[0], len(data))
	p = upload(f.t, f.addrs[0], id, 0)
	p.send(data[:part])
	arrives(f.t, f.folder, id, part)
	return data, id, p
}

// newFleetOf is one of n processes, which wait for a lock for that long.
func newFleetOf(t *testing.T, n int, watchdog, patience time.Duration, redis ...string) *fleet {
	t.Helper()
	return newSlowFleet(t, n, watchdog, patience, 0, redis...)
}

// newSlowFleet is one whose store takes that long to find an upload.
func newSlowFleet(t *testing.T, n int, watchdog, patience, finds time.Duration, redis ...string) *fleet {
	t.Helper()
	t.Parallel()
	f := &fleet{t: t, redis: redistest.Start(t, redis...), folder: t.TempDir()}
	self := redistest.NewSelf(t)
	for i := range n {
		f.processes = append(f.processes, self.Start(fmt.Sprint("ROLE=", i), "REDIS="+f.redis.Addr(), "FOLDER="+f.folder,
			"WATCHDOG="+watchdog.String(), "PATIENCE="+patience.String(), "FINDS="+finds.String()))
		_, addr, _ := strings.Cut(self.Find(fmt.Sprint(i, " 127.")), " ")
		f.addrs = append(f.addrs, addr)
	}
	return f
}

// do sends a request of the tus protocol.
func do(t *testing.T, method, addr, id string, body io.Reader, header ...string) (*http.Response, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, "http://"+addr+"/files/"+id, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Tus-Resumable", "1.0.0")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err == nil {
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(text))
	}
	return resp, err
}

// create begins an upload of that size, and returns its id.
func create(t *testing.T, addr string, size int) string {
	t.Helper()
	resp, err := do(t, http.MethodPost, addr, "", nil, "Upload-Length", strconv.Itoa(size),
		"Upload-Metadata", "name "+base64.StdEncoding.EncodeToString([]byte("x")))
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, resp.StatusCode)
	location := resp.Header.Get("Location")
	return location[strings.LastIndex(location, "/")+1:]
}

// offset asks a process how much of an upload there is.
func offset(t *testing.T, addr, id string) int {
	t.Helper()
	resp, err := do(t, http.MethodHead, addr, id, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	n, err := strconv.Atoi(resp.Header.Get("Upload-Offset"))
	require.NoError(t, err)
	return n
}

// patch is an upload under way.
type patch struct {
	t     *testing.T
	body  *io.PipeWriter
	ended chan string // the status, or the error
}

// upload begins to send at that offset.
func upload(t *testing.T, addr, id string, at int) *patch {
	t.Helper()
	in, out := io.Pipe()
	p := &patch{t, out, make(chan string, 1)}
	go func() { // ends with the request
		resp, err := do(t, http.MethodPatch, addr, id, in, "Content-Type", "application/offset+octet-stream", "Upload-Offset", strconv.Itoa(at))
		if err != nil {
			p.ended <- err.Error()
			return
		}
		text, _ := io.ReadAll(resp.Body)
		p.ended <- resp.Status + " " + string(text)
	}()
	t.Cleanup(func() { _ = out.Close() })
	return p
}

// send sends a part of the body.
func (p *patch) send(part []byte) {
	p.t.Helper()
	_, err := p.body.Write(part)
	require.NoError(p.t, err)
}

// ends waits for the end of the request, and returns how it ended.
func (p *patch) ends() string {
	p.t.Helper()
	return redistest.Within(p.t, soon, p.ended, "the upload ends")
}

// nothing uploads no data, and returns how that ended.
func nothing(t *testing.T, addr, id string) string {
	t.Helper()
	p := upload(t, addr, id, 0)
	require.NoError(t, p.body.Close())
	return p.ends()
}

// arrives waits until the file of an upload has that size.
func arrives(t *testing.T, folder, id string, size int) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		info, err := os.Stat(filepath.Join(folder, id))
		return err == nil && info.Size() == int64(size)
	}, "the data arrives")
}

// content is data for an upload.
func content(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * i / 3)
	}
	return data
}

const part = 64 << 10 // more than the buffers of a request

// finish uploads the rest through one process, and checks the whole.
func (f *fleet) finish(addr, id string, data []byte) {
	f.t.Helper()
	at := offset(f.t, addr, id)
	p := upload(f.t, addr, id, at)
	if at < len(data) {
		p.send(data[at:])
	}
	require.NoError(f.t, p.body.Close())
	require.Contains(f.t, p.ends(), "204 No Content")
	is, err := os.ReadFile(filepath.Join(f.folder, id))
	require.NoError(f.t, err)
	require.Equal(f.t, data, is)
}

// An upload that goes on in another process, again and again, gets there long before any lease ends. The request before is interrupted.
func TestTurns(t *testing.T) {
	f := newFleet(t, time.Minute)
	data := content(6 * part)
	id := create(t, f.addrs[0], len(data))
	for i := range 5 {
		at := i * part
		p := upload(t, f.addrs[i%3], id, at)
		p.send(data[at : at+part])
		arrives(t, f.folder, id, at+part)
		if i%2 == 0 {
			<-time.After(300 * time.Millisecond) // otherwise it asks early, and waits for the settling
		}
		began := time.Now()
		require.Equal(t, at+part, offset(t, f.addrs[(i+1)%3], id))
		took := redistest.Ran(t, began, time.Now())
		t.Log("the next process has it after", took)
		require.Less(t, took, 10*time.Second)
		require.Contains(t, p.ends(), "ERR_UPLOAD_INTERRUPTED")
	}
	f.finish(f.addrs[0], id, data)
}

// early is how long tusd does not heed that it is asked: less than the adapter waits, and more than others take to ask.
const early = 60 * time.Millisecond

// A request that asks before the upload reads its body is not forgotten.
func TestAskedEarly(t *testing.T) {
	f := newSlowFleet(t, 3, time.Minute, soon, early)
	id := create(t, f.addrs[0], part)
	for range 5 {
		p := upload(t, f.addrs[0], id, 0)
		f.locked(id, true)
		require.Zero(t, offset(t, f.addrs[1], id))
		require.Contains(t, p.ends(), "ERR_UPLOAD_INTERRUPTED")
	}
}

// Nor is one of a store that takes longer than the adapter waits, with an option that says so.
func TestAskedEarlyWithASlowStore(t *testing.T) {
	f := newSlowFleet(t, 3, time.Minute, soon, time.Second)
	id := create(t, f.addrs[0], part)
	p := upload(t, f.addrs[0], id, 0)
	f.locked(id, true)
	require.Zero(t, offset(t, f.addrs[1], id))
	require.Contains(t, p.ends(), "ERR_UPLOAD_INTERRUPTED")
}

// After the death of a process the upload goes on in another one when its lease has ended.
func TestKill(t *testing.T) {
	f := newFleet(t, watchdog)
	data, id, p := f.halfway(2)
	f.processes[0].Kill()
	require.NoError(t, p.body.Close())
	require.NotContains(t, p.ends(), "204 No Content")
	f.finish(f.addrs[1], id, data)
}

// A process that is stopped loses the lock, and the upload goes on in another one. When it continues, its request ends.
func TestPause(t *testing.T) {
	f := newFleet(t, watchdog)
	data, id, p := f.halfway(2)
	f.processes[0].Pause()
	f.finish(f.addrs[1], id, data)
	f.processes[0].Resume()
	require.Contains(t, p.ends(), "ERR_UPLOAD_INTERRUPTED")
	require.Equal(t, len(data), offset(t, f.addrs[2], id))
}

// A restart of Redis with its data interrupts nothing. Without it the lock is lost, and so ends the request.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, durable := range map[string][]string{"with its data": {"--appendonly", "yes", "--appendfsync", "always"}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 2*watchdog, durable...)
			data, id, p := f.halfway(3)
			f.redis.Kill()
			f.redis.Restart()
			if durable == nil {
				require.Contains(t, p.ends(), "ERR_UPLOAD_INTERRUPTED")
				f.finish(f.addrs[1], id, data)
				return
			}
			p.send(data[part : 2*part])
			arrives(t, f.folder, id, 2*part)
			<-time.After(2 * watchdog) // for so long a lease would have lasted
			p.send(data[2*part:])
			require.NoError(t, p.body.Close())
			require.Contains(t, p.ends(), "204 No Content")
			require.Equal(t, len(data), offset(t, f.addrs[1], id))
		})
	}
}

// client returns one of another process.
func (f *fleet) client() *rlock.Client {
	f.t.Helper()
	c, err := rlock.New(f.redis.Client(f.t), rlock.Options{})
	require.NoError(f.t, err)
	f.t.Cleanup(c.Close)
	return c
}

// locked waits until an upload is locked, or is not any more.
func (f *fleet) locked(id string, want bool) {
	f.t.Helper()
	m := f.client().Mutex(id)
	redistest.Eventually(f.t, soon, func() bool {
		is, err := m.IsLocked(f.t.Context())
		require.NoError(f.t, err)
		return is == want
	}, fmt.Sprint("locked: ", want))
}

// A lock that is lost interrupts the request, and the upload goes on in another process.
func TestLostLock(t *testing.T) {
	f := newFleet(t, watchdog)
	data, id, p := f.halfway(2)
	forced, err := f.client().Mutex(id).ForceUnlock(t.Context())
	require.NoError(t, err)
	require.True(t, forced)
	require.Contains(t, p.ends(), "ERR_UPLOAD_INTERRUPTED")
	f.locked(id, false)
	f.finish(f.addrs[1], id, data)
}

// So does one that is lost before tusd could heed it.
func TestLostEarly(t *testing.T) {
	f := newSlowFleet(t, 1, 100*time.Millisecond, soon, early)
	id := create(t, f.addrs[0], part)
	for range 5 {
		p := upload(t, f.addrs[0], id, 0)
		m := f.client().Mutex(id)
		redistest.Eventually(t, soon, func() bool {
			forced, err := m.ForceUnlock(t.Context())
			require.NoError(t, err)
			return forced || len(p.ended) > 0 // on a slow machine it is lost by itself
		}, "the lock is lost")
		require.Contains(t, p.ends(), "ERR_UPLOAD_INTERRUPTED")
	}
}

// The errors are ones that tusd, and clients of tus, understand.
func TestErrors(t *testing.T) {
	s := newFleetOf(t, 1, watchdog, soon/2)
	addr := s.addrs[0]
	id := create(t, addr, part)
	s.redis.Stop()
	p := upload(t, addr, id, 0)
	require.NoError(t, p.body.Close())
	s.redis.Restart() // in time
	require.Contains(t, p.ends(), "204 No Content")

	rdb := s.redis.Client(t)
	require.NoError(t, rdb.Do(t.Context(), rdb.B().Set().Key(id).Value("data").Build()).Error())
	status := nothing(t, addr, id)
	require.Contains(t, status, "503")
	require.Contains(t, status, "ERR_LOCK_UNAVAILABLE")
	require.NotContains(t, status, id, "clients learn nothing of Redis")

	l, err := rlocktusd.New(s.client()).NewLock("\x00 any bytes")
	require.NoError(t, err)
	require.ErrorIs(t, l.Unlock(), rlock.ErrNotHeld)
	require.NoError(t, l.Lock(t.Context(), func() {}))
	require.NoError(t, l.Unlock())
	require.ErrorIs(t, l.Unlock(), rlock.ErrNotHeld)
}

// A request that cannot have its lock in time says so.
func TestTimeout(t *testing.T) {
	s := newFleetOf(t, 1, watchdog, time.Second)
	id := create(t, s.addrs[0], part)
	_, _, err := s.client().Mutex(id).Lock(t.Context()) // a holder that nobody can ask
	require.NoError(t, err)
	require.Contains(t, nothing(t, s.addrs[0], id), "ERR_LOCK_TIMEOUT")
	s.redis.Stop()
	require.Contains(t, nothing(t, s.addrs[0], id), "ERR_LOCK_TIMEOUT")
}

// The end of the Client ends the requests, and frees their locks: the uploads go on in another process long before a lease would end.
func TestShutdown(t *testing.T) {
	f := newFleet(t, time.Minute)
	data, id, p := f.halfway(2)
	f.processes[0].Terminate()
	require.Contains(t, p.ends(), "ERR_UPLOAD_INTERRUPTED")
	require.Contains(t, nothing(t, f.addrs[0], id), "ERR_SERVER_SHUTDOWN")
	f.locked(id, false)
	f.finish(f.addrs[1], id, data)
}
