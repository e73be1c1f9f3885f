//go:build programs && unix

package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// browser is a headless Chromium with one page. It is told what to do by the DevTools protocol, over pipes.
type browser struct {
	t       *testing.T
	in      *os.File
	session string

	mu      sync.Mutex // guards the following
	number  int
	answers map[int]chan json.RawMessage
	errors  []string // that the page reported
}

// startBrowser starts Chromium, which the test ends.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		path, err = exec.LookPath("google-chrome")
	}
	require.NoError(t, err, "install Chromium: make programs does it")
	childIn, in, err := os.Pipe()
	require.NoError(t, err)
	out, childOut, err := os.Pipe()
	require.NoError(t, err)
	dir := t.TempDir()
	// Its sandbox needs rights that a container and root lack; the page is our own.
	cmd := exec.CommandContext(t.Context(), path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--hide-scrollbars", "--user-data-dir="+dir, "--remote-debugging-pipe")
	cmd.ExtraFiles = []*os.File{childIn, childOut}
	cmd.Env = append(os.Environ(), "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, childIn.Close())
	require.NoError(t, childOut.Close())
	b := &browser{t: t, in: in, answers: make(map[int]chan json.RawMessage)}
	ended := make(chan struct{})
	go func() { // ends with the browser
		defer close(ended)
		b.read(bufio.NewReader(out))
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with its helpers
		_ = cmd.Wait()
		<-ended
		_ = in.Close()
		_ = out.Close()
		redistest.Eventually(t, patience, func() bool { return os.RemoveAll(dir) == nil }, "its helpers have ended, and write no more")
	})
	var made struct {
		TargetID string `json:"targetId"`
	}
	b.do("Target.createTarget", map[string]any{"url": "about:blank"}, &made)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	b.do("Target.attachToTarget", map[string]any{"targetId": made.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.do(domain+".enable", nil, nil)
	}
	return b
}

func (b *browser) read(r *bufio.Reader) {
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID            int             `json:"id"`
			Method        string          `json:"method"`
			Result, Error json.RawMessage `json:",omitempty"`
			Params        json.RawMessage `json:"params"`
		}
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID > 0 && m.Error != nil:
			b.answers[m.ID] <- m.Error
		case m.ID > 0:
			b.answers[m.ID] <- m.Result
		case m.Method == "Runtime.exceptionThrown", m.Method == "Log.entryAdded":
			b.errors = append(b.errors, string(m.Params))
		case m.Method == "Network.requestWillBeSent" && !strings.Contains(string(m.Params), `"url":"file:`):
			b.errors = append(b.errors, string(m.Params))
		}
		b.mu.Unlock()
	}
}

// do sends a command, and decodes its result.
func (b *browser) do(method string, params, result any) {
	b.t.Helper()
	answer := make(chan json.RawMessage, 1)
	b.mu.Lock()
	b.number++
	id := b.number
	b.answers[id] = answer
	b.mu.Unlock()
	text, err := json.Marshal(map[string]any{"id": id, "method": method, "params": params, "sessionId": b.session})
	require.NoError(b.t, err)
	if b.session == "" {
		text = bytes.Replace(text, []byte(`,"sessionId":""`), nil, 1)
	}
	if params == nil {
		text = bytes.Replace(text, []byte(`,"params":null`), nil, 1)
	}
	_, err = b.in.Write(append(text, 0))
	require.NoError(b.t, err)
	var got json.RawMessage
	select {
	case got = <-answer:
	case <-time.After(patience):
		b.t.Fatalf("no answer to %s", method)
	}
	require.NotContains(b.t, string(got), `"code":-32`, method)
	if result != nil {
		require.NoError(b.t, json.Unmarshal(got, result), string(got))
	}
}

// open shows a page of ours, and waits until it is ready.
func (b *browser) open(file, hash string) {
	b.t.Helper()
	b.do("Page.navigate", map[string]any{"url": "about:blank"}, nil)
	b.do("Page.navigate", map[string]any{"url": "file://" + file + hash}, nil)
	redistest.Eventually(b.t, patience, func() bool { return b.eval(`document.documentElement?.dataset.ready || ''`) != "" }, "it is ready")
}

// eval returns the text that an expression has.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var got struct {
		Result           struct{ Value string }
		ExceptionDetails json.RawMessage
	}
	b.do("Runtime.evaluate", map[string]any{"expression": "String(" + expression + ")", "awaitPromise": true}, &got)
	require.Empty(b.t, string(got.ExceptionDetails), expression)
	return got.Result.Value
}

// key presses a key.
func (b *browser) key(key string) {
	b.t.Helper()
	text := ""
	if len(key) == 1 {
		text = key
	}
	b.do("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "text": text}, nil)
	b.do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key}, nil)
}

// typeIn replaces the text of a field.
func (b *browser) typeIn(id, text string) {
	b.t.Helper()
	b.eval(`(document.getElementById('` + id + `').focus(), document.getElementById('` + id + `').select())`)
	if text == "" {
		b.eval(`document.execCommand('delete')`)
		return
	}
	b.do("Input.insertText", map[string]any{"text": text}, nil)
}

func (b *browser) size(width, height int) {
	b.t.Helper()
	b.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}, nil)
}

// scheme chooses light or dark.
func (b *browser) scheme(name string) {
	b.t.Helper()
	b.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// picture returns what is seen, as PNG.
func (b *browser) picture() []byte {
	b.t.Helper()
	b.eval(`new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))`)
	var got struct{ Data string }
	b.do("Page.captureScreenshot", map[string]any{"format": "png"}, &got)
	png, err := base64.StdEncoding.DecodeString(got.Data)
	require.NoError(b.t, err)
	return png
}

// requireNoErrors checks that the page reported no error, and asked no server for anything.
func (b *browser) requireNoErrors() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.errors)
}
