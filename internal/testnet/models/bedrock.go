package models

import (
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
)

// bedrock is InvokeModel of Amazon Bedrock for Anthropic's models. The path names the model, and whether the answer is streamed:
// https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_InvokeModelWithResponseStream.html.
type bedrock struct{ messages }

const streamedInvoke = "/invoke-with-response-stream"

func (bedrock) refusal(_, message string) any { return object{"message": message} }

// chunk returns an event in the form application/vnd.amazon.eventstream.
func chunk(event []byte) []byte {
	payload, _ := json.Marshal(object{"bytes": event, "p": "abcd"}) // bytes and a string
	var headers []byte
	for _, h := range [][2]string{{":event-type", "chunk"}, {":content-type", "application/json"}, {":message-type", "event"}} {
		headers = append(append(headers, byte(len(h[0]))), h[0]...)
		headers = binary.BigEndian.AppendUint16(append(headers, 7), uint16(len(h[1]))) // 7: a string
		headers = append(headers, h[1]...)
	}
	out := binary.BigEndian.AppendUint32(nil, uint32(12+len(headers)+len(payload)+4))
	out = binary.BigEndian.AppendUint32(out, uint32(len(headers)))
	out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out))
	out = append(append(out, headers...), payload...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out))
}
