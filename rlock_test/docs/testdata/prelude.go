// Package prelude has the imports and names that Go blocks in the documentation use without declaring them.
package prelude

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/rueidis"
	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"

	"github.com/go-rlock/rlock/adapters/certmagic"
	"github.com/go-rlock/rlock/adapters/gocron"
	"github.com/go-rlock/rlock/adapters/tusd"
	"github.com/go-rlock/rlock/rlock"
	"github.com/go-rlock/rlock/rlockotel"
	"github.com/go-rlock/rlock/rlocktest"
)

// Variables of a program.
var (
	ctx              context.Context
	err              error
	rdb, redisClient rueidis.Client
	client           *rlock.Client
	m                *rlock.Mutex
	r                *http.Request
	one, two, three  *rlock.Client // of three servers
	server           *http.Server
	db               *sql.DB
	data             []byte
	ticket           string // of an Export
)

// Work done under locks.
var (
	work, ship, feed, show, fill, transfer, write, report, charge, change, pay, notify, audit, takeStock func(context.Context) error

	consume func(ctx context.Context, slot int) error
	fresh   func(context.Context) bool
	rebuild func(context.Context) (string, error)

	billing interface {
		Charge(ctx context.Context, order int) error
	}
	store interface {
		Write(ctx context.Context, token int64, data []byte) error
	}
)

// Other people's libraries: a provider of goose, a cron.Cron of robfig/cron, and schedulers of asynq.
var (
	provider interface {
		HasPending(ctx context.Context) (bool, error)
		Up(ctx context.Context) ([]any, error)
	}
	crontab interface {
		AddFunc(spec string, cmd func()) (int, error)
	}
	newScheduler func() interface {
		Start() error
		Shutdown()
	}
)

// A program's metrics, like those of Prometheus.
type observer interface{ Observe(float64) }

var (
	leaseMargin    observer
	acquireSeconds interface {
		WithLabelValues(values ...string) observer
	}
)
