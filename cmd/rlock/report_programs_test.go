//go:build programs && unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

// pageOf writes a recording, and returns its page.
func pageOf(t *testing.T, events []event) (file string) {
	t.Helper()
	dir := t.TempDir()
	recording, err := os.Create(filepath.Join(dir, "night.jsonl"))
	require.NoError(t, err)
	w := newRecordWriter(recording)
	w.line(heading{Version: 1, Time: night, Redis: []string{"127.0.0.1:6379"}, Pattern: "*", Every: 1000, Rate: 1000})
	for _, e := range events {
		w.event(e)
	}
	require.NoError(t, w.flush())
	require.NoError(t, recording.Close())
	file = filepath.Join(dir, "night.html")
	require.Equal(t, result{}, call(t, "", "report", recording.Name(), "-o", file))
	return file
}

func cells(b *browser, table string) [][]string {
	var rows [][]string
	for line := range strings.SplitSeq(b.eval(`[...document.querySelectorAll('#`+table+` tbody tr')].map(r => [...r.cells].map(c => c.textContent).join('\t')).join('\n')`), "\n") {
		rows = append(rows, strings.Split(line, "\t"))
	}
	return rows
}

// The page shows what happened, filtered and by keys, in light and dark, and on a phone. Names are text in it.
func TestReportInABrowser(t *testing.T) {
	const evil = `</script><script>document.title = 'owned'</script><img src=x onerror="document.title = 'owned'">` + "\u202e\xff"
	at := func(s float64) time.Time { return night.Add(time.Duration(s * float64(time.Second))) }
	of := func(name string, e event) event { e.of(name); return e }
	file := pageOf(t, []event{
		of("job", event{Time: at(1), Event: "held", Kind: "mutex", Owner: web1 + ":1", Label: "web-1", Within: 1}),
		of(evil, event{Time: at(2), Event: "acquired", Kind: "fenced", Owner: web2 + ":2", Label: "<b>web-2</b>", Within: 50}),
		of("job", event{Time: at(3), Event: "waits", Kind: "mutex", Owner: web2 + ":14000000000000000003", Label: "<b>web-2</b>", Within: 50}),
		of("job", event{Time: at(13), Event: "released", Kind: "mutex", Owner: web1 + ":1", Label: "web-1", Within: 50}),
		of("job", event{Time: at(13), Event: "acquired", Kind: "mutex", Owner: web2 + ":14000000000000000003", Label: "<b>web-2</b>", Within: 50}),
		of("job", event{Time: at(15), Event: "expired", Kind: "mutex", Owner: web2 + ":14000000000000000003", Label: "<b>web-2</b>", Within: 50}),
		of(evil, event{Time: at(16), Event: "forced", Kind: "fenced", Owner: web2 + ":2", Label: "<b>web-2</b>", Within: 50}),
		{Time: at(20), Event: "end"},
	})
	b := startBrowser(t)
	b.size(1200, 900)
	b.open(file, "")
	require.Equal(t, "Locks of 127.0.0.1:6379, 2026-11-28", b.eval("document.title"))
	require.Equal(t, [][]string{{"10.0 s", "job", "<b>web-2</b>", "web-1", "20:00:03.000", "got it"}}, cells(b, "waits"))
	require.Equal(t, [][]string{
		{"20:00:15.000", "job", "<b>web-2</b>", "lost: lease expired", "2.00 s"}, {"20:00:16.000", printable(evil), "<b>web-2</b>", "forced", "14.0 s"},
	}, cells(b, "losses"))
	require.Len(t, cells(b, "locks"), 2)

	// Filters.
	b.typeIn("name", "JOB")
	require.Len(t, cells(b, "locks"), 1)
	require.Len(t, cells(b, "losses"), 1)
	b.typeIn("name", "<script>")
	require.Equal(t, printable(evil), cells(b, "locks")[0][0])
	b.typeIn("name", "")
	b.typeIn("who", "web-1")
	require.Equal(t, [][]string{{"job", "mutex", "2", "14.0 s", "1", "10.0 s", "10.0 s", "", "1"}}, cells(b, "locks"))
	require.Equal(t, [][]string{{"Nobody waited."}}, cells(b, "waits"))
	redistest.Eventually(t, patience, func() bool { return b.eval("location.hash") == "#who=web-1" }, "the address tells the filter")
	b.open(file, "#who=web-2&only=bad&from=1000&to=5000")
	require.Equal(t, "20:00:01 to 20:00:05, 4.00 s; 2 of 2 locks", b.eval("document.getElementById('shown').textContent"))

	// Keys.
	b.open(file, "")
	b.eval("document.getElementById('picture').focus()")
	detail := func() string { return b.eval("document.getElementById('detail').textContent") }
	b.key("ArrowDown")
	require.Equal(t, "job: mutex, held 2 times, for 14.0 s; 1 waits, the longest 10.0 s; 1 lost or forced", detail())
	b.key("n")
	require.Equal(t, "job: held by web-1 ("+web1+":1) for 12.0 s, from before 20:00:01.000 to 20:00:13.000 (or up to 50 ms before): released", detail())
	b.key("n")
	require.Equal(t, "job: <b>web-2</b> ("+web2+":14000000000000000003) waited for 10.0 s, from 20:00:03.000 (or up to 50 ms before), behind web-1, and got it", detail())
	b.key("n")
	require.Contains(t, detail(), "LOST: its lease expired")
	b.key("p")
	b.key("p")
	require.Contains(t, detail(), "held by web-1")
	shown := func() string { return b.eval("document.getElementById('shown').textContent") }
	all := shown()
	b.key("+")
	require.NotEqual(t, all, shown())
	b.key("ArrowRight")
	b.key("0")
	require.Equal(t, all, shown())
	b.eval("document.querySelector('#waits button').click()")
	require.Equal(t, "picture", b.eval("document.activeElement.id"))
	require.Contains(t, detail(), "waited for 10.0 s")

	// Colours follow the scheme, and nothing is wider than a phone.
	light := b.picture()
	b.scheme("dark")
	dark := b.picture()
	require.Greater(t, brightness(t, light), 200.0)
	require.Less(t, brightness(t, dark), 70.0)
	b.size(400, 800)
	b.open(file, "")
	require.Equal(t, "400", b.eval("document.documentElement.scrollWidth"))
	require.NotEqual(t, "owned", b.eval("document.title"))
	b.requireNoErrors()
}

// brightness is the mean of a picture's, from 0 to 255.
func brightness(t *testing.T, text []byte) float64 {
	t.Helper()
	picture, err := png.Decode(bytes.NewReader(text))
	require.NoError(t, err)
	sum, many := 0.0, 0
	for y := 0; y < picture.Bounds().Dy(); y += 5 {
		for x := 0; x < picture.Bounds().Dx(); x += 5 {
			r, g, b, _ := picture.At(x, y).RGBA()
			sum, many = sum+float64(r+g+b)/3/257, many+1
		}
	}
	return sum / float64(many)
}

// The page of a million events is there in three seconds, and still moves.
func TestReportOfAMillionEvents(t *testing.T) {
	const events, locks, limit = 1_000_000, 200, 3 * time.Second
	all := make([]event, 0, events)
	r := rand.New(rand.NewPCG(1, 2))
	now, number := night, 0
	for len(all) < events {
		now = now.Add(time.Duration(r.IntN(170)) * time.Millisecond)
		number++
		name := fmt.Sprint("job:", int(locks*r.Float64()*r.Float64()))
		client := r.IntN(40)
		e := event{Kind: "mutex", Owner: fmt.Sprintf("%08d-1d5f-4a1a-815f-7580e9531ca2:14%018d", client, number), Label: fmt.Sprint("web-", client), Within: 50}
		e.of(name)
		for i, what := range []string{"waits", "acquired", "left", "released"} {
			e.Event, e.Time = what, now.Add(time.Duration(i*r.IntN(3000))*time.Millisecond)
			all = append(all, e)
		}
	}
	file := pageOf(t, all)
	info, err := os.Stat(file)
	require.NoError(t, err)
	b := startBrowser(t)
	b.size(1200, 900)
	b.open(file, "")
	ready, err := strconv.Atoi(b.eval("document.documentElement.dataset.ready"))
	require.NoError(t, err)
	t.Logf("%d events: %d bytes, ready after %d ms", events, info.Size(), ready)
	require.Less(t, time.Duration(ready)*time.Millisecond, limit)
	b.eval("document.getElementById('picture').focus()")
	began := time.Now()
	for range 5 {
		b.key("+")
		b.key("ArrowLeft")
	}
	b.picture()
	t.Logf("ten keys took %v", time.Since(began))
	require.Less(t, time.Since(began), limit)
	b.requireNoErrors()
}

// A real run, recorded and shown. "make picture" makes this test write docs/report.png.
func TestReportOfARealRun(t *testing.T) {
	s := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "night.jsonl")
	if kept := os.Getenv("RLOCK_RECORDING"); kept != "" {
		file = kept
	}
	recorder := start(t, nil, "record", "-redis", s.Addr(), "-every", "200ms", "-o", file)
	aDay(t, s)
	recorder.signal(syscall.SIGINT)
	require.Zero(t, recorder.rest().code)
	page := strings.TrimSuffix(file, ".jsonl") + ".html"
	require.Equal(t, result{}, call(t, "", "report", file, "-o", page))

	b := startBrowser(t)
	b.size(1200, 1000)
	b.open(page, "")
	require.Greater(t, len(cells(b, "waits")), 10)
	waits := cells(b, "waits")[0]
	require.Equal(t, []string{"nightly", "web-2", "cron-1"}, waits[1:4])
	require.Equal(t, "left without it", waits[5])
	losses := make(map[string]string)
	for _, row := range cells(b, "losses") {
		losses[row[1]] = row[2] + " " + row[3]
	}
	require.Equal(t, map[string]string{"export": "worker-9 lost: lease expired", "report": "web-1 lost: deleted", "upload:7": "import-1 forced"}, losses)
	b.requireNoErrors()
	if path := os.Getenv("RLOCK_PICTURE"); path != "" {
		b.eval("document.getElementById('picture').focus()")
		for _, key := range []string{"ArrowDown", "n", "n"} { // the longest wait
			b.key(key)
		}
		b.eval("document.activeElement.blur()")
		require.NoError(t, os.WriteFile(path, b.picture(), 0o644))
	}
}

// aDay is twenty seconds of some processes that use locks, with what goes wrong in a night.
func aDay(t *testing.T, s *redistest.Server) {
	t.Helper()
	rdb := s.Client(t)
	client := func(label string) *rlock.Client {
		c, err := rlock.New(s.Client(t), rlock.Options{Label: label})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	web1, web2, cron, worker, imports := client("web-1"), client("web-2"), client("cron-1"), client("worker-3"), client("import-1")
	over, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all sync.WaitGroup
	r := rand.New(rand.NewPCG(7, 7))
	for i, c := range []*rlock.Client{web1, web2, worker, imports} {
		seed := r.Uint64()
		all.Go(func() { // ends with over
			r := rand.New(rand.NewPCG(seed, 1))
			pause := func(least, most int) {
				select {
				case <-time.After(time.Duration(least+r.IntN(most-least)) * time.Millisecond):
				case <-over.Done():
				}
			}
			for over.Err() == nil {
				name, least, most := "stock:7", 60, 300
				if r.IntN(3) == 0 {
					name, least, most = "invoices", 300, 1500
				}
				m := c.Mutex(name)
				if name == "invoices" {
					m = c.FencedMutex(name)
				}
				if i == 1 && r.IntN(3) == 0 {
					m = c.RWMutex("catalogue").Read()
				}
				_ = m.Do(over, func(context.Context) error { pause(least, most); return nil })
				pause(50, 600)
			}
		})
	}
	all.Go(func() { // ends with over
		_ = cron.Mutex("nightly").Do(over, func(ctx context.Context) error {
			for over.Err() == nil {
				_ = cron.RWMutex("catalogue").Write().Do(ctx, func(context.Context) error {
					select {
					case <-time.After(1200 * time.Millisecond):
					case <-over.Done():
					}
					return nil
				})
				select {
				case <-time.After(2 * time.Second):
				case <-over.Done():
				}
			}
			return nil
		})
	})
	all.Go(func() { // ends with its wait
		<-time.After(2 * time.Second)
		_ = web2.Mutex("nightly").TryDo(t.Context(), 13*time.Second, func(context.Context) error { return nil })
	})
	do := func(cmd rueidis.Completed) { require.NoError(t, rdb.Do(t.Context(), cmd).Error()) }
	<-time.After(3 * time.Second)
	lock(t.Context(), t, imports.Mutex("upload:7"))
	lock(t.Context(), t, web1.Mutex("report"))
	// A holder that has died, as its lease shows.
	const dead = "6c1f7f0e-2d3b-4a55-9f0a-51c8d2a4b7e3"
	do(rdb.B().Set().Key("rlock_client:{" + dead[:18] + "}").Value("worker-9").Px(time.Minute).Build())
	do(rdb.B().Hset().Key("export").FieldValue().FieldValue(dead+":14000000000000000007", "1").Build())
	do(rdb.B().Pexpire().Key("export").Milliseconds(9000).Build())
	<-time.After(7 * time.Second)
	require.Zero(t, call(t, s.Addr(), "unlock", "-force", "-yes", "upload:7").code)
	<-time.After(2 * time.Second)
	do(rdb.B().Del().Key("report").Build())
	all.Wait()
}
