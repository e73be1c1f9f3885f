package redistest

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// frame is a complete RESP value as sent, attributes included.
type frame struct {
	raw   []byte
	kind  byte     // the value's first byte: '*', '>', '-', ...
	items []string // the texts of an aggregate's elements; nested aggregates are ""
}

// command returns the words of a request, its name in upper case. An inline
// command ("PING\r\n") has no RESP form.
func (f frame) command() []string {
	words := f.items
	if f.kind != '*' {
		words = strings.Fields(string(f.raw))
	}
	if len(words) > 0 {
		words[0] = strings.ToUpper(words[0])
	}
	return words
}

// decoder cuts a byte stream of RESP2 or RESP3 into frames.
type decoder struct {
	r   *bufio.Reader
	raw []byte // of the frame being read
}

func newDecoder(r io.Reader) *decoder { return &decoder{r: bufio.NewReader(r)} }

func (d *decoder) frame() (frame, error) {
	d.raw = nil // the frame before this one keeps its bytes
	kind, _, items, err := d.value()
	return frame{raw: d.raw, kind: kind, items: items}, err
}

// value reads one value: its text if it is a scalar, otherwise its elements.
func (d *decoder) value() (kind byte, text string, items []string, err error) {
	line, err := d.r.ReadString('\n')
	if err != nil {
		return 0, "", nil, err
	}
	d.raw = append(d.raw, line...)
	kind, text = line[0], strings.TrimRight(line[1:], "\r\n")
	switch kind {
	case '$', '!', '=':
		text, err = d.bulk(text)
	case '*', '~', '>':
		items, err = d.elements(text, 1)
		text = ""
	case '%':
		items, err = d.elements(text, 2)
		text = ""
	case '|': // an attribute comes before its value
		if _, err = d.elements(text, 2); err == nil {
			return d.value()
		}
	}
	return kind, text, items, err
}

func (d *decoder) bulk(length string) (string, error) {
	n, err := strconv.Atoi(length)
	if err != nil {
		return "", fmt.Errorf("redistest: RESP length %q", length)
	}
	if n < 0 {
		return "", nil // RESP2's null
	}
	from := len(d.raw)
	d.raw = append(d.raw, make([]byte, n+len("\r\n"))...)
	_, err = io.ReadFull(d.r, d.raw[from:])
	return string(d.raw[from : from+n]), err
}

// elements reads the length times per values of an aggregate.
func (d *decoder) elements(length string, per int) ([]string, error) {
	n, err := strconv.Atoi(length)
	if err != nil {
		return nil, fmt.Errorf("redistest: RESP length %q", length)
	}
	var items []string
	for range n * per {
		_, text, _, err := d.value()
		if err != nil {
			return nil, err
		}
		items = append(items, text)
	}
	return items, nil
}
