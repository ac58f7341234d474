// Package bucket asks an S3 server one signed question about a bucket, and says what the
// answer means for who uses the bucket: a condition, with a tier.
//
// It creates, changes and reads no object. No report, condition or error of this package has
// credentials in it, in any spelling.
package bucket

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Bucket says where a bucket is, and with which credentials it is used.
type Bucket struct {
	// Endpoint is the server's URL, http or https.
	Endpoint string
	// Region is the one to sign for; empty: us-east-1, which servers without regions take.
	Region string
	Name   string
	// Prefix is what the names of the volume's objects begin with: a policy may allow no more.
	Prefix string
	// VirtualHost is true where the bucket's name is the first part of the host's.
	VirtualHost bool
	// WriteOnly is true for access that must not list: a denial then means that all is well.
	WriteOnly bool
	// CA has the only certificates (PEM) that may vouch for the server; empty: the system's.
	CA string

	AccessKeyID     Secret
	SecretAccessKey Secret
	SessionToken    Secret // of credentials that expire
	Expires         time.Time
}

// Secret is a text that is never printed: every way to print it yields [redacted].
type Secret string

const redacted = "[redacted]"

// Format implements fmt.Formatter, so that no verb reaches the text.
func (Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText implements encoding.TextMarshaler, which encoding/json uses, too.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

func (b Bucket) region() string { return cmp.Or(b.Region, "us-east-1") }

// ReadDir returns the access that the files of a mounted Secret describe: with the keys of
// COSI v1alpha2, with BucketInfo of v1alpha1, or with the names that AWS's tools use, which
// do not name the bucket. An error names keys, and quotes no value.
func ReadDir(dir string) (Bucket, error) {
	for {
		// All keys are links to ..data, which kubelet lets point to another directory when the
		// Secret changed: an old key ID and its new password belong to nobody.
		version, _ := os.Readlink(filepath.Join(dir, "..data"))
		b, err := readDir(dir)
		if now, _ := os.Readlink(filepath.Join(dir, "..data")); now == version {
			return b, err
		}
	}
}

func readDir(dir string) (b Bucket, err error) {
	file := func(key string) string {
		text, failed := readFile(filepath.Join(dir, key))
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = failed
		}
		return string(text)
	}
	b.CA = file("COSI_CERTIFICATE_AUTHORITY")
	protocol, info, awsKey := file("COSI_PROTOCOL"), file("BucketInfo"), file("AWS_ACCESS_KEY_ID")
	switch {
	case protocol == "S3":
		b.Endpoint, b.Region, b.Name = file("COSI_S3_ENDPOINT"), file("COSI_S3_REGION"), file("COSI_S3_BUCKET_ID")
		b.VirtualHost = file("COSI_S3_ADDRESSING_STYLE") == "virtual"
		b.AccessKeyID, b.SecretAccessKey = Secret(file("COSI_S3_ACCESS_KEY_ID")), Secret(file("COSI_S3_ACCESS_SECRET_KEY"))
	case protocol != "":
		return b, errors.New("COSI_PROTOCOL is not S3: all else (Azure, GCS) is not supported")
	case info != "":
		return fromBucketInfo(b, info)
	case awsKey != "":
		b.Region = cmp.Or(file("AWS_REGION"), file("AWS_DEFAULT_REGION"))
		domain := ".amazonaws.com"
		b.Endpoint = cmp.Or(file("AWS_ENDPOINT_URL_S3"), file("AWS_ENDPOINT_URL"))
		switch {
		case b.Endpoint == "" && err == nil && !regionName.MatchString(b.region()): // it may be a credential, and would be looked up
			err = errors.New("the region is none of AWS's, and there is no AWS_ENDPOINT_URL")
		case strings.HasPrefix(b.Region, "cn-"):
			domain = ".amazonaws.com.cn"
		case strings.HasPrefix(b.Region, "eusc-"):
			domain = ".amazonaws.eu"
		}
		b.Endpoint = cmp.Or(b.Endpoint, "https://s3."+b.region()+domain)
		b.AccessKeyID, b.SecretAccessKey, b.SessionToken = Secret(awsKey), Secret(file("AWS_SECRET_ACCESS_KEY")), Secret(file("AWS_SESSION_TOKEN"))
		b.Expires, _ = time.Parse(time.RFC3339, file("AWS_CREDENTIAL_EXPIRATION")) // zero if it is none
	case err == nil:
		err = fmt.Errorf("%s has no file COSI_PROTOCOL, BucketInfo or AWS_ACCESS_KEY_ID", dir)
	}
	return b, err
}

// readFile reads a regular file: a FIFO would be waited for, for ever.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, fmt.Errorf("%s is no regular file", path))
	}
	return os.ReadFile(path)
}

// fromBucketInfo reads
//
//	{"spec": {"bucketName": "data", "authenticationType": "KEY", "protocols": ["s3"],
//	 "secretS3": {"endpoint": "https://s3.example.com", "region": "", "accessKeyID": "...", "accessSecretKey": "..."}}}
func fromBucketInfo(b Bucket, info string) (Bucket, error) {
	var document struct {
		Spec struct {
			BucketName string
			SecretS3   *struct{ Endpoint, Region, AccessKeyID, AccessSecretKey string }
		}
	}
	if err := json.Unmarshal([]byte(info), &document); err != nil || document.Spec.SecretS3 == nil {
		return b, errors.New("BucketInfo has no secretS3: Azure and access without keys are not supported")
	}
	s3 := document.Spec.SecretS3
	b.Name, b.Endpoint, b.Region = document.Spec.BucketName, s3.Endpoint, s3.Region
	b.AccessKeyID, b.SecretAccessKey = Secret(s3.AccessKeyID), Secret(s3.AccessSecretKey)
	return b, nil
}
