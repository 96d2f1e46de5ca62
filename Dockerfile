# The image holds one static binary, the certificates it trusts and a user without rights. There is no shell in it: health
# checks are a role of the binary (paymentsd healthcheck).

FROM golang:1.26-bookworm AS build
WORKDIR /src
# Empty means Go's own default. A network with a module proxy of its own passes it: --build-arg GOPROXY=...
ARG GOPROXY
ARG GOSUMDB
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags='-s -w' -o /image/paymentsd ./cmd/paymentsd \
 && mkdir -p /image/data /image/etc/ssl/certs \
 && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
 && echo 'paymentsd:x:10001:10001:paymentsd:/data:/paymentsd' > /image/etc/passwd \
 && echo 'paymentsd:x:10001:' > /image/etc/group

FROM scratch
COPY --from=build /image/etc /etc
COPY --from=build /image/paymentsd /paymentsd
# A volume mounted here starts with this directory's owner.
COPY --from=build --chown=10001:10001 /image/data /data
USER 10001:10001
WORKDIR /data
VOLUME /data
ENV PAYMENTSD_DATA_DIR=/data \
    PAYMENTSD_HTTP_ADDR=0.0.0.0:8080 \
    PAYMENTSD_PROVIDER_ADDR=0.0.0.0:8090 \
    PAYMENTSD_ADMIN_ADDR=0.0.0.0:9090
EXPOSE 8080 8090 9090
ENTRYPOINT ["/paymentsd"]
CMD ["--help"]
