package redistest_test

import (
	"os"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv("REDISTEST_ROLE") != "" {
		talks()
	}
	redistest.Main(m)
}
