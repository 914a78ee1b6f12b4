package upstream

import (
	"math"

	"golang.org/x/net/http2"

	"boxgate/relay/h2"
)

// settings are a server's SETTINGS.
type settings struct {
	known    bool // received
	streams  int  // maximum of concurrent streams, at most MaxStreams
	window   int  // of a new stream
	headSize int  // of a request's head, by RFC 9113, 6.5.2
}

// firstSettings apply until the server's SETTINGS arrive.
var firstSettings = settings{streams: firstStreams, window: h2.FirstWindow, headSize: math.MaxInt}

// settingsLocked handles SETTINGS.
func (c *Conn) settingsLocked(f *http2.SettingsFrame) error {
	if f.IsAck() {
		if !c.unacked {
			return broken(http2.ErrCodeProtocol)
		}
		c.unacked = false
		return nil
	}
	if !c.settings.known {
		c.settings.known, c.settings.streams = true, MaxStreams
	}
	if err := f.ForeachSetting(c.settingLocked); err != nil {
		return framingError(err)
	}
	_ = c.framer.WriteSettingsAck()
	c.stalled.resume()
	return c.answeredLocked()
}

// settingLocked handles one setting. A larger compression table and longer frames are not used.
func (c *Conn) settingLocked(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingEnablePush:
		if s.Val != 0 { // RFC 9113, 6.5.2
			return broken(http2.ErrCodeProtocol)
		}
	case http2.SettingMaxConcurrentStreams:
		c.settings.streams = int(min(s.Val, MaxStreams))
	case http2.SettingMaxHeaderListSize:
		c.settings.headSize = int(s.Val)
	case http2.SettingInitialWindowSize:
		change := int(s.Val) - c.settings.window
		c.settings.window = int(s.Val)
		for _, stream := range c.streams {
			if !stream.send.Add(change) {
				return broken(http2.ErrCodeFlowControl)
			}
		}
	}
	return nil
}
