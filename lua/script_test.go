package lua

import (
	"crypto/sha1"
	"encoding/hex"
	"testing"
)

func TestHashes(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]script{
		"acquire": acquireScript, "release": releaseScript, "renew": renewScript, "force": forceScript,
		"acquireAll": acquireAllScript, "releaseEach": releaseEachScript,
		"fairAcquire": fairAcquireScript, "fairRelease": fairReleaseScript,
		"fairRefresh": fairRefreshScript, "fairForce": fairForceScript,
		"readAcquire": acquireScripts[Reader], "readRelease": releaseScripts[Reader], "readRenew": readRenewScript,
		"writeAcquire": acquireScripts[Writer], "writeRelease": releaseScripts[Writer], "rwForce": rwForceScript, "info": infoScript,
		"latchSet": latchSetScript, "latchCountDown": latchCountDownScript, "latchDelete": latchDeleteScript, "latchLook": latchLookScript,
		"fencedWrite": fencedWriteScript,
		"export":      exportScript, "adopt": adoptScript, "next_token": nextTokenScript,
		"semaphore": semaphoreScript, "permits": permitsScript, "permitsRenew": permitsRenewScript,
		"permitsLease": permitsLeaseScript, "permitsInfo": permitsInfoScript, "semaphoreDelete": semaphoreDeleteScript,
	} {
		sum := sha1.Sum([]byte(s.text))
		if want := hex.EncodeToString(sum[:]); s.sha != want {
			t.Errorf("%sScript: the hash is %q, want %q", name, s.sha, want)
		}
	}
}
