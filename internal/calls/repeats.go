package calls

import (
	"reflect"

	"github.com/redis/rueidis"
)

// mayRepeat reports whether connections of rdb have a lifetime (ClientOption.ConnLifetime), or whether that cannot be seen, say
// because another type is wrapped around the client. When one expires, rueidis sends the commands under way on it again by
// itself, also those that ran.
func mayRepeat(rdb rueidis.Client) bool {
	if late, ok := rdb.(interface{ MayRepeat() bool }); ok { // it is not connected yet
		return late.MayRepeat()
	}
	v := reflect.Indirect(reflect.ValueOf(rdb))
	if v.Kind() != reflect.Struct {
		return true
	}
	f := v.FieldByName("hasLftm") // of all clients of rueidis v1.0.79 but standalone ones with replicas
	return f.Kind() != reflect.Bool || f.Bool()
}
