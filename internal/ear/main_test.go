package ear

import (
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }
