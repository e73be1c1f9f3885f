package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"
)

// A recording is a file of JSON lines, see docs/cli.md: a heading, then events in the order in which they were noticed. A later recording
// may follow in the same file, with a heading of its own.

// recordingVersion is that of the format. A reader refuses a higher one; new fields and events do not raise it.
const recordingVersion = 1

// heading is the first line of a recording.
type heading struct {
	Version int       `json:"rlock_recording"`
	Time    time.Time `json:"time"`
	Redis   []string  `json:"redis"`
	Prefix  string    `json:"prefix,omitempty"`
	Pattern string    `json:"pattern"`
	Every   int64     `json:"every_ms"`
	Rate    int       `json:"rate"` // commands a second, at most
}

// The events of a recording.
const (
	eventHeld     = "held"     // by this owner, when the lock was first seen
	eventAcquired = "acquired" // by this owner
	eventReleased = "released" // by this owner
	eventExpired  = "expired"  // under this owner
	eventGone     = "gone"     // deleted under this owner: no unlock message came
	eventForced   = "forced"   // freed under this owner by rlock unlock -force
	eventVanished = "vanished" // its hold ended while Redis did not answer
	eventPassed   = "passed"   // the lock was acquired and released between two looks

	eventWaits  = "waits"  // this owner waits in line; only the Client is known of waiters for the read side
	eventLeft   = "left"   // it waits no more: acquired follows if it has the lock
	eventOthers = "others" // number of further waiting processes, such as Redisson's

	eventDown    = "down"    // Redis fails
	eventUp      = "up"      // it answers again
	eventRestart = "restart" // and has been started again meanwhile
	eventDeaf    = "deaf"    // there are so many messages that none are heard for a while
	eventMore    = "more"    // number of locks beyond -limit, which are left out
	eventAlive   = "alive"   // every 10 seconds
	eventEnd     = "end"     // of the recording
)

// event is any other line.
type event struct {
	Time    time.Time `json:"time"`
	Event   string    `json:"event"`
	Name    string    `json:"name,omitempty"`
	Bytes   []byte    `json:"name_base64,omitempty"` // of a name that is not valid UTF-8
	Kind    string    `json:"kind,omitempty"`        // of the lock
	Owner   string    `json:"owner,omitempty"`
	Label   string    `json:"label,omitempty"` // of that owner
	Token   int64     `json:"token,omitempty"`
	Within  int64     `json:"within_ms,omitempty"` // it happened so long before Time, at most
	Unlocks int       `json:"unlocks,omitempty"`   // messages about unlocks and hand-overs of the lock in that time
	Count   *int64    `json:"count,omitempty"`

	Names    int    `json:"names,omitempty"`    // locks that are looked at
	Commands int64  `json:"commands,omitempty"` // sent since the event before
	Error    string `json:"error,omitempty"`
}

// lock returns the name as it is in Redis.
func (e *event) lock() string {
	if len(e.Bytes) > 0 {
		return string(e.Bytes)
	}
	return e.Name
}

// of sets the name.
func (e *event) of(name string) {
	if e.Name = name; !utf8.ValidString(name) {
		e.Bytes = []byte(name)
	}
}

// appendRecording opens a file to write a recording behind those that it has, if any. A last line that was cut is ended.
func appendRecording(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	if err := endLine(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// endLine makes sure that a file can be appended to.
func endLine(f *os.File) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return err
	}
	first, err := bufio.NewReaderSize(io.NewSectionReader(f, 0, longestLine), longestLine).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if h, ok := readHeading(first); !ok || h.Version > recordingVersion {
		return errors.New("the file exists, and is no recording that this version can append to")
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = f.Write([]byte("\n"))
	return err
}

// longestLine bounds a line that is read. A name has at most some hundred bytes, usually.
const longestLine = 1 << 20

func readHeading(line []byte) (h heading, ok bool) {
	if !bytes.HasPrefix(line, []byte(`{"rlock_recording":`)) {
		return h, false
	}
	return h, json.Unmarshal(line, &h) == nil && h.Version > 0
}

// damage is what could not be read of a recording.
type damage struct {
	cut   bool // the last line ends in the middle
	lines int  // other lines that are no events
}

var errNoRecording = errors.New("it is no recording of rlock record")

// readRecording calls begin for each heading, and add for each event.
func readRecording(r io.Reader, begin func(heading), add func(event)) (d damage, err error) {
	lines, begun := bufio.NewReaderSize(r, 64<<10), false
	var long []byte
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if long = append(long, line...); len(long) > longestLine {
				return d, errNoRecording
			}
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return d, err
		}
		if len(long) > 0 {
			line, long = append(long, line...), nil
		}
		h, isHeading := readHeading(line)
		var e event
		switch {
		case isHeading && h.Version > recordingVersion:
			return d, fmt.Errorf("it has format %d, of a later version of rlock; this one reads up to %d", h.Version, recordingVersion)
		case isHeading:
			begun = true
			begin(h)
		case len(bytes.TrimSpace(line)) == 0:
		case !begun:
			return d, errNoRecording
		case json.Unmarshal(line, &e) == nil && e.Event != "" && !e.Time.IsZero():
			add(e)
		case err != nil:
			d.cut = true
		default:
			d.lines++
		}
		if err != nil {
			if !begun {
				return d, errNoRecording
			}
			return d, nil
		}
	}
}
