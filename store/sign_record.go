package store

import "boxgate/policy"

// signRecord is the stored form of how requests are signed.
type signRecord struct {
	AWS  *awsRecord  `json:"aws,omitempty"`
	HMAC *hmacRecord `json:"hmac,omitempty"`
}

type awsRecord struct {
	Key      string   `json:"key,omitempty"`
	Source   string   `json:"source,omitempty"`
	Regions  []string `json:"regions"`
	Services []string `json:"services"`
}

type hmacRecord struct {
	Key       string `json:"key,omitempty"`
	Source    string `json:"source,omitempty"`
	Header    string `json:"header"`
	Format    string `json:"format"`
	Encoding  string `json:"encoding"`
	Template  string `json:"template"`
	Timestamp string `json:"timestamp,omitempty"`
	Clock     string `json:"clock"`
}

func signRecordOf(s policy.Signing) *signRecord {
	switch {
	case s.AWS != nil:
		a := s.AWS
		return &signRecord{AWS: &awsRecord{a.Credentials.Value.Reveal(), a.Credentials.Source, a.Regions, a.Services}}
	case s.HMAC != nil:
		h := s.HMAC
		return &signRecord{HMAC: &hmacRecord{h.Key.Value.Reveal(), h.Key.Source, h.Header, h.Format, h.Encoding, h.Template, h.Timestamp, h.Clock}}
	}
	return nil
}

// signing is the reverse of signRecordOf.
func (r *signRecord) signing() (s policy.Signing) {
	switch {
	case r == nil:
	case r.AWS != nil:
		s.AWS = &policy.AWSSigning{
			Credentials: policy.Key{Value: policy.NewSecret(r.AWS.Key), Source: r.AWS.Source}, Regions: r.AWS.Regions, Services: r.AWS.Services,
		}
	case r.HMAC != nil:
		h := r.HMAC
		s.HMAC = &policy.HMACSigning{
			Key: policy.Key{Value: policy.NewSecret(h.Key), Source: h.Source}, Header: h.Header, Format: h.Format, Encoding: h.Encoding,
			Template: h.Template, Timestamp: h.Timestamp, Clock: h.Clock,
		}
	}
	return s
}
