package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const settingSize = 6 // bytes: an identifier of two, a value of four

func settingAt(b []byte) http2.Setting {
	return http2.Setting{ID: http2.SettingID(binary.BigEndian.Uint16(b)), Val: binary.BigEndian.Uint32(b[2:])}
}
