# The image holds the static binary and nothing else: no shell, no libraries.
# BUILD_IMAGE can name any image with Go in it.
ARG BUILD_IMAGE=golang:1.26
FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN make build

FROM scratch
COPY --from=build /src/bin/postrider /postrider
# nobody: the process needs no rights on its machine.
USER 65534:65534
EXPOSE 9464
ENTRYPOINT ["/postrider"]
