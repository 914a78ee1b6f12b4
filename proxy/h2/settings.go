package h2

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

const settingSize = 6 // bytes: an identifier of two, a value of four

// settingsOnce returns a SETTINGS frame that contains each setting once and is equivalent to applying the settings in
// order (RFC 9113, 6.5.3). A frame with an error that the library must see is returned unchanged.
func settingsOnce(frame []byte, head http2.FrameHeader) []byte {
	payload := frame[FrameHead:]
	if head.Flags.Has(http2.FlagSettingsAck) || len(payload)%settingSize != 0 || len(payload) > settingMax*settingSize {
		return frame
	}
	kept := payload[:0]
	for rest := payload; len(rest) > 0; rest = rest[settingSize:] {
		now := settingAt(rest)
		if same := findSetting(kept, now.ID); same != nil {
			binary.BigEndian.PutUint32(same[2:], successor(settingAt(same), now))
			continue
		}
		kept = append(kept, rest[:settingSize]...)
	}
	frame[0], frame[1], frame[2] = 0, byte(len(kept)>>8), byte(len(kept))
	return frame[:FrameHead+len(kept)]
}

func settingAt(b []byte) http2.Setting {
	return http2.Setting{ID: http2.SettingID(binary.BigEndian.Uint16(b)), Val: binary.BigEndian.Uint32(b[2:])}
}

func findSetting(settings []byte, id http2.SettingID) []byte {
	for ; len(settings) > 0; settings = settings[settingSize:] {
		if settingAt(settings).ID == id {
			return settings[:settingSize]
		}
	}
	return nil
}

// successor returns the value equivalent to two values of one setting: the later one, except that errors are preserved,
// and that a header table made small in between has lost its entries (RFC 7541, 4.2).
func successor(before, now http2.Setting) uint32 {
	switch {
	case before.ID == http2.SettingHeaderTableSize:
		return min(before.Val, now.Val)
	case before.Valid() != nil:
		return before.Val
	}
	return now.Val
}
