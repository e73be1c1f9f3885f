package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var night = time.Date(2026, 11, 28, 20, 0, 0, 0, time.UTC)

// Clients of recordings.
const (
	web1 = "27641d87-edf4-4903-b914-f42f2a980c26"
	web2 = "6bb271ee-7765-429d-8683-72f1eb767f52"
)

// timelineOf returns the timeline of events, each given as seconds, event, owner and, for others, a count.
func timelineOf(events ...string) *timeline {
	t := newTimeline()
	t.begin(heading{Version: 1, Time: night, Redis: []string{"here"}, Pattern: "*", Every: 1000, Rate: 1000})
	for _, text := range events {
		var s float64
		var what, owner string
		var count int64
		_, _ = fmt.Sscan(text+" - 0", &s, &what, &owner, &count)
		e := event{Time: night.Add(time.Duration(s * float64(time.Second))), Event: what, Owner: strings.Trim(owner, "-"), Name: "job", Kind: "mutex", Within: 10}
		if what == eventOthers {
			e.Owner, e.Count = "", &count
		}
		t.add(e)
	}
	t.finish()
	return t
}

// text describes the stints of the only lock.
func (t *timeline) text() string {
	var all []string
	for _, lane := range t.locks["job"].lanes() {
		for _, s := range lane.stints {
			what := "held"
			if s.waits {
				what = "waits"
			}
			who := s.owner
			if s.count > 0 {
				who = fmt.Sprint(s.count)
			}
			all = append(all, fmt.Sprintf("%s %s %v-%v %d", who, what, s.from.Sub(night).Seconds(), s.to.Sub(night).Seconds(), s.how))
		}
	}
	return strings.Join(all, ", ")
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []string
		want   string
	}{
		"a hold":                 {[]string{"1 acquired a:1", "2 released a:1"}, "a:1 held 1-2 0"},
		"before the recording":   {[]string{"1 held a:1", "2 expired a:1"}, "a:1 held 1-2 17"},
		"to the end":             {[]string{"1 held a:1", "5 end"}, "a:1 held 1-5 21"},
		"losses":                 {[]string{"1 acquired a:1", "2 gone a:1", "3 acquired b:1", "4 forced b:1", "5 acquired b:2", "6 vanished b:2"}, "a:1 held 1-2 2, b:1 held 3-4 3, b:2 held 5-6 4"},
		"a wait":                 {[]string{"1 acquired a:1", "2 waits b:1", "3 released a:1", "3 acquired b:1", "3 left b:1", "4 released b:1"}, "a:1 held 1-3 0, b:1 held 3-4 0, b:1 waits 2-3 0"},
		"given up":               {[]string{"2 waits b:1", "3 left b:1"}, "b:1 waits 2-3 6"},
		"without left":           {[]string{"2 waits b:1", "3 acquired b:1", "3 released b:1"}, "b:1 held 3-3 0, b:1 waits 2-3 0"},
		"a reader":               {[]string{"2 waits b", "3 acquired b:1", "4 left b"}, "b:1 held 3-4 5, b waits 2-4 0"},
		"a reader that gives up": {[]string{"1 acquired b:1", "2 waits b", "4 left b"}, "b:1 held 1-4 5, b waits 2-4 6"},
		"others":                 {[]string{"1 others - 2", "2 others - 1", "3 others - 0"}, "2 waits 1-2 6, 1 waits 2-3 6"},
		"brief":                  {[]string{"1 passed"}, " held 0.99-1 7"},
		"brief, after another":   {[]string{"1 acquired a:1", "2 released a:1", "2.005 passed"}, "a:1 held 1-2 0,  held 2-2.005 7"},
		"two at once":            {[]string{"1 acquired a:1", "2 acquired b:1", "3 released a:1", "4 released b:1"}, "a:1 held 1-3 0, b:1 held 2-4 0"},
		"nonsense":               {[]string{"1 released a:1", "2 left a:1", "3 sneezed a:1", "4 held a:1", "4 held a:1", "5 waits b:1", "6 waits b:1"}, "a:1 held 4-6 21, b:1 waits 5-6 5"},
	} {
		require.Equal(t, c.want, timelineOf(c.events...).text(), name)
	}

	// A wait that ends while the lock passes on between two looks may have been successful.
	hot := newTimeline()
	hot.begin(heading{Time: at(0)})
	hot.add(event{Time: at(1), Event: eventWaits, Name: "job", Owner: "a:1"})
	hot.add(event{Time: at(2), Event: eventLeft, Name: "job", Owner: "a:1", Unlocks: 3})
	hot.finish()
	require.Equal(t, "a:1 waits 1-2 8", hot.text())
	require.Zero(t, hot.locks["job"].unlocks, "counted with the holders")

	// What concerns all locks.
	all := timelineOf("1 held a:1", "2 down", "3 down", "4 restart", "4 up", "4 vanished a:1", "9 deaf", "30 down", "40 alive")
	require.Equal(t, []mark{
		{at(2), at(4), "Redis did not answer"}, {at(4), at(4), "Redis was restarted"}, {at(9), at(19), "too many messages: not heard"}, {at(30), at(40), "Redis did not answer"},
	}, all.marks)

	// A second recording in the file knows nothing of what the first has left open.
	two := newTimeline()
	two.begin(heading{Time: at(0)})
	two.add(event{Time: at(1), Event: eventHeld, Name: "job", Owner: "a:1"})
	two.add(event{Time: at(2), Event: eventWaits, Name: "job", Owner: "b:1"})
	two.begin(heading{Time: at(10)})
	two.add(event{Time: at(11), Event: eventHeld, Name: "job", Owner: "b:1"})
	two.add(event{Time: at(12), Event: eventReleased, Name: "job", Owner: "b:1"})
	two.finish()
	require.Equal(t, "a:1 held 1-2 21, b:1 held 11-12 16, b:1 waits 2-2 5", two.text())
	require.Equal(t, []mark{{at(2), at(10), "not recorded"}}, two.marks)
}

func at(second int) time.Time { return night.Add(time.Duration(second) * time.Second) }

// Readers have lanes beside each other, up to a number.
func TestLanes(t *testing.T) {
	t.Parallel()
	var events []string
	for i := range 6 {
		events = append(events, fmt.Sprintf("%d acquired a:%d", i, i))
	}
	for i := range 6 {
		events = append(events, fmt.Sprintf("%d released a:%d", 10+i, i))
	}
	lanes := timelineOf(append(events, "20 acquired b:1")...).locks["job"].lanes()
	require.Len(t, lanes, mostHoldLanes)
	require.Len(t, lanes[0].stints, 2, "the lane is free again")
	require.Len(t, lanes[mostHoldLanes-1].stints, 3, "the last is shared")
}

// The page has all that comes from Redis as data, whatever its names are.
func TestPageIsSafe(t *testing.T) {
	t.Parallel()
	const evil = "</script><!--<script>alert(1)</script>\u202e\x00\xff&\u2028"
	dir := t.TempDir()
	in := filepath.Join(dir, "night.jsonl")
	e := event{Time: at(1), Event: eventHeld, Kind: evil, Owner: evil + ":" + evil, Label: evil}
	e.of(evil)
	text := jsonLine(heading{Version: 1, Time: night, Redis: []string{evil}, Pattern: evil}) + "\n" + jsonLine(e) + "\n"
	require.NoError(t, os.WriteFile(in, []byte(text), 0o600))
	r := call(t, "", "report", in)
	require.Zero(t, r.code, r.err)
	require.Empty(t, r.err)
	require.Equal(t, 3, strings.Count(r.out, "<script"))
	require.Equal(t, 3, strings.Count(r.out, "</script"))
	require.Equal(t, -1, strings.Index(r.out, "<!--"))
	require.Equal(t, -1, strings.Index(r.out, "\u202e"))
	require.Empty(t, regexp.MustCompile(`(src|href)\s*=|url\(|import\(|fetch\(`).FindString(r.out), "nothing is loaded")
	var data pageData
	require.NoError(t, json.Unmarshal([]byte(between(t, r.out, `id="data">`, "</script>")), &data))
	require.Equal(t, printable(evil), data.Locks[0].Name)
	const other = "</script><!--<script>alert(1)</script>\u202e\x00\ufffd&\u2028" // JSON has no other bytes
	require.Equal(t, clean(other), data.Clients[0][1])
	stints, err := base64.StdEncoding.DecodeString(between(t, r.out, `id="stints">`, "</script>"))
	require.NoError(t, err)
	require.Equal(t, []byte{0xe8, 7, 0, endOpen | began, 0, 0, 1, 1}, stints) // 1000 ms, none, flags, in, out, client, first other tag
	require.Equal(t, []string{clean(other)}, data.Tags)
}

func between(t *testing.T, text, from, to string) string {
	t.Helper()
	_, text, ok := strings.Cut(text, from)
	require.True(t, ok, from)
	text, _, ok = strings.Cut(text, to)
	require.True(t, ok, to)
	return text
}

// Each form of a tag has its numbers, see packer.tag.
func TestPackTags(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string][]byte{
		"7": {7 << 2}, "0": {0}, "07": {7<<2 | 2}, "00": {2}, "14000000000000000007": {7<<2 | 3, 14}, "10000000000000000000": {3, 10},
		"": {1}, "000123456789012345678901234567890": {1}, "-5": {1}, "19999999999999999999": {1}, "x": {1}, "2147483648": {1}, "1": {4}, "007": {1},
	} {
		p := &packer{tagAt: make(map[string]int)}
		p.tag(tag)
		require.Equal(t, want, p.bytes, tag)
		if want[0] == 1 {
			require.Equal(t, []string{tag}, p.tags)
		}
	}
	p := &packer{}
	for _, n := range []int64{0, 127, 128, 16384, -1} {
		p.number(n)
	}
	require.Equal(t, []byte{0, 127, 0x80, 1, 0x80, 0x80, 1, 0}, p.bytes)
}

func TestReportErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(text string) string {
		f, err := os.CreateTemp(dir, "")
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		return f.Name()
	}
	head := jsonLine(heading{Version: 1, Time: night}) + "\n"
	for says, c := range map[string]struct {
		code int
		args []string
	}{
		"report needs FILE":                             {exitUsage, nil},
		"flag provided but not defined: -redis":         {exitUsage, []string{"-redis", "x"}},
		"no such file":                                  {exitInternal, []string{filepath.Join(dir, "none")}},
		"it is no recording of rlock record":            {exitInternal, []string{file("hello\n")}},
		"it has format 2, of a later version of rlock":  {exitInternal, []string{file(`{"rlock_recording":2,"time":"2026-11-28T20:00:00Z"}`)}},
		"is a directory":                                {exitInternal, []string{file(head), "-o", dir}},
		"the last line was cut, and is left out\n":      {0, []string{file(head + `{"time":"2026-`)}},
		"rlock: 2 lines are no events, and are left ou": {0, []string{file(head + "x\ny\n")}},
	} {
		r := call(t, "", append([]string{"report"}, c.args...)...)
		require.Equal(t, c.code, r.code, says)
		require.Contains(t, r.err, says)
	}
	// stdin, and a file.
	require.Contains(t, call(t, "", "report", file(head+"x\n")).out, "1 lines of the recording are damaged")
	r := call(t, "", "report", "-")
	require.Equal(t, exitInternal, r.code) // it is empty here
	out := filepath.Join(dir, "night.html")
	require.Equal(t, result{}, call(t, "", "report", file(head), "-o", out))
	page, err := os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(page), "</html>\n"))
}

// Whatever a file has, it is read or refused, and what was read makes a page.
func FuzzReport(f *testing.F) {
	head := jsonLine(heading{Version: 1, Time: night}) + "\n"
	f.Add(head + jsonLine(event{Time: at(1), Event: eventHeld, Name: "job", Owner: web1 + ":1:write"}) + "\n" + jsonLine(event{Time: at(2), Event: eventLeft, Name: "job", Owner: web1}))
	f.Add(head + head + `{"time":"0001-01-02T00:00:00Z","event":"passed","within_ms":-5,"unlocks":-1}` + "\n" + `{"time":"9999-01-02T00:00:00Z","event":"others","count":-3}`)
	f.Add(head + `{"time":"2026-11-28T20:00:01Z","event":"acquired","owner":":write","name_base64":"/w=="}` + "\n" + `{"time":"2026-11-28T20:00:01Z","event":"waits","owner":"x:-1"}` + "\n{")
	f.Fuzz(func(t *testing.T, text string) {
		all := newTimeline()
		if _, err := readRecording(strings.NewReader(text), all.begin, all.add); err != nil {
			return
		}
		all.finish()
		var page strings.Builder
		require.NoError(t, all.page(&page))
		require.Equal(t, 3, strings.Count(page.String(), "</script>"))
	})
}
