package rlocktusd_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	"golang.org/x/exp/slog"

	rlocktusd "github.com/go-rlock/rlock/adapters/tusd"
	"github.com/go-rlock/rlock/rlock"
)

// Every process that serves the uploads in the folder has the same Locker.
func Example() {
	client, err := rlock.Open(os.Getenv("REDIS_URL"), rlock.Options{Prefix: "upload:"})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	folder, err := os.MkdirTemp("", "uploads") // that all processes share
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()

	composer := handler.NewStoreComposer()
	filestore.New(folder).UseIn(composer)
	rlocktusd.New(client, rlock.WithWatchdog(10*time.Second)).UseIn(composer) // tusd waits for 20 s, by default
	uploads, err := handler.NewHandler(handler.Config{
		BasePath: "/files/", StoreComposer: composer, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(http.StripPrefix("/files/", uploads))
	defer server.Close()

	send := func(method, to, body string, header ...string) *http.Response {
		r, err := http.NewRequest(method, to, strings.NewReader(body)) //nolint:noctx // it is an example
		if err != nil {
			panic(err)
		}
		r.Header.Set("Tus-Resumable", "1.0.0")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			panic(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	created := send(http.MethodPost, server.URL+"/files/", "", "Upload-Length", "10")
	upload := created.Header.Get("Location")
	send(http.MethodPatch, upload, "hello", "Upload-Offset", "0", "Content-Type", "application/offset+octet-stream")
	fmt.Println("offset", send(http.MethodHead, upload, "").Header.Get("Upload-Offset"), "of 10")
	// Output: offset 5 of 10
}
