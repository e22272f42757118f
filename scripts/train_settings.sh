# Sourced by train.sh: what a preset means for an architecture. Not a command of its own.
# shellcheck shell=bash disable=SC2154 # preset, arch, epochs, updates, gpus, more are train.sh's
# shellcheck disable=SC2034 # and what is set here is read there
#
#   size      layers of encoder and decoder, dimension, that of the feed-forward layers, heads
#   length    epochs N or updates N
#   batch     target tokens of an update
#   last      how many checkpoints are averaged
#   training  flags with their values
#   switches  flags without one
#   own_size  not empty: the architecture has a size by itself

value_of() { # flag of fairseq, what it is if it is not given after --
    local flag=$1 value=$2 i
    for ((i = 0; i < ${#more[@]}; i++)); do
        case ${more[i]} in
            "$flag") value=${more[i + 1]:-} ;;
            "$flag"=*) value=${more[i]#*=} ;;
        esac
    done
    printf '%s' "$value"
}

case $preset in
    tiny) size=(4 4 128 256 4) ;;
    small) size=(6 6 256 1024 4) ;;
    iwslt) size=(6 6 512 1024 4) ;;
    base) size=(6 6 512 2048 8) ;;
    big) size=(6 6 1024 4096 16) ;;
    deep-shallow) size=(12 1 512 2048 8) ;;
esac
last=5
[ "$preset" != tiny ] || last=8
[ "$preset" != small ] || last=3
plain_loss=label_smoothed_cross_entropy
[ "$gpus" != 0 ] || plain_loss=lean_cross_entropy # the same, in two thirds of the time
switches=() smoothing=0.1 own_size='' encoder_of=verifier
case $arch in
    ibdecoder* | imdecoder* | sa_transformer* | transformer_r2l* | transformer_both_ends* | \
        double_token*)
        encoder_of=Transformer
        [[ ! $arch =~ _(tiny|iwslt|big)$ ]] || own_size=1
        ;;
esac

if [[ $arch == blockwise_* ]]; then # heads on a Transformer
    [[ ! $arch =~ _(tiny|iwslt|big)$ ]] || own_size=1
    fine_tunes=
    for flag in "${more[@]}"; do
        [ "$flag" != --fine-tune-base ] || fine_tunes=1
    done
    # Stern et al. 2018 train for as long as the base again, with its settings from the start on.
    # That ruins a tiny base, which is fine-tuned slowly, for as many updates as it was trained.
    [ -z "$fine_tunes" ] || switches=(--train-first-head) # theirs; a frozen base's is the identity
    case $preset in
        tiny | small) # all heads at once: one at a time takes half the time, and teaches a sixth as much
            length=(epochs 8) batch=4096 last=3
            training=(--warmup-updates 500 --block-size 6 --heads-per-update all)
            if [ -n "$fine_tunes" ]; then
                length=(epochs 10) batch=1024
                training+=(--lr 0.0003 --first-head-weight 10) # head 1 writes the outputs
            else
                training+=(--lr 0.003 --dropout 0.1)
            fi
            ;;
        iwslt)
            length=(epochs 40) batch=4096
            training=(--lr 0.0005 --warmup-updates 4000 --weight-decay 0.0001)
            ;;
        base | deep-shallow)
            length=(updates 100000) batch=25000
            training=(--lr 0.0007 --warmup-updates 4000 --adam-eps 1e-9)
            ;;
        big)
            length=(updates 300000) batch=25000
            training=(--lr 0.0005 --warmup-updates 4000 --adam-eps 1e-9)
            ;;
    esac
    training=(--adam-betas '(0.9, 0.98)' --lr-scheduler inverse_sqrt "${training[@]}"
        --criterion blockwise_loss)
    [ -z "$image" ] || smoothing=0
elif [[ $arch == image_transformer* ]]; then # Stern et al. 2018 and Parmar et al. smooth nothing
    [[ ! $arch =~ _(tiny|iwslt|big)$ ]] || own_size=1
    smoothing=0
    case $preset in
        tiny)
            length=(epochs 20) batch=8192 last=3
            training=(--lr 0.002 --warmup-updates 500)
            ;;
        small | iwslt | base | deep-shallow | big) # not tuned
            length=(updates 100000) batch=25000
            training=(--lr 0.0007 --warmup-updates 4000 --adam-eps 1e-9)
            ;;
    esac
    training=(--adam-betas '(0.9, 0.98)' --lr-scheduler inverse_sqrt --dropout 0.1 "${training[@]}"
        --criterion "$plain_loss")
elif [ "$arch" = shallow_decoder ]; then # a drafter that writes token by token
    smoothing=0
    case $preset in
        tiny | small) # tuned for tiny on Multi30k's validation set: too small to be regularised
            length=(updates 2500) batch=3000
            training=(--lr 0.005 --warmup-updates 200 --dropout 0)
            ;;
        iwslt | base | deep-shallow | big) # not tuned
            length=(updates 20000) batch=25000
            training=(--lr 0.0007 --warmup-updates 1000 --dropout 0.1)
            ;;
    esac
    training=(--adam-betas '(0.9, 0.98)' "${training[@]}" --criterion "$plain_loss")
elif [[ $arch != block_nat* ]]; then # a translation model
    # Where the papers give d^-0.5 * warm-up^-0.5, that is the peak.
    case $preset in
        tiny)
            length=(epochs 38) batch=4096
            training=(--dropout 0.3 --lr 0.005 --warmup-updates 2000)
            ;;
        small)
            length=(epochs 12) batch=4096
            training=(--dropout 0.1 --lr 0.0015 --warmup-updates 2000)
            ;;
        iwslt)
            length=(epochs 40) batch=4096
            training=(--dropout 0.3 --lr 0.0005 --warmup-updates 4000 --weight-decay 0.0001)
            ;;
        base | deep-shallow)
            length=(updates 100000) batch=25000
            training=(--dropout 0.1 --lr 0.0007 --warmup-updates 4000 --adam-eps 1e-9)
            ;;
        big)
            length=(updates 300000) batch=25000
            training=(--dropout 0.3 --lr 0.0005 --warmup-updates 4000 --adam-eps 1e-9)
            ;;
    esac
    training=(--adam-betas '(0.9, 0.98)' --lr-scheduler inverse_sqrt "${training[@]}"
        --criterion "$plain_loss")
    if [[ $arch == double_token* && $preset =~ ^(base|big)$ ]]; then
        # Imamura and Sumita 2020, Table 1. Of WMT14, 16,000 tokens are their 500 sentences, and
        # 45,000 updates their 5 epochs of warm-up. They stop when 10 epochs bring nothing, and
        # average the best 10 checkpoints, not the last.
        length=(updates 200000) batch=16000 last=10
        training=(--adam-betas '(0.9, 0.99)' --adam-eps 1e-6 --lr-scheduler inverse_sqrt --lr 0.0004
            --warmup-updates 45000 --weight-decay 0.0001 --clip-norm 5
            --criterion "$plain_loss")
        if [ "$preset" = base ]; then
            training+=(--dropout 0.1)
        else
            training+=(--dropout 0.3 --attention-dropout 0.1)
            switches=(--encoder-normalize-before --decoder-normalize-before)
        fi
    fi
else # GAD's drafter
    attention=bidirectional dropout=0.1
    [ "$arch" != block_nat_fast ] || attention=prefix_causal
    attention=$(value_of --drafter-attention "$attention")
    case $preset in
        tiny | small)
            # Tuned for tiny on Multi30k's validation set: too small to be regularised.
            length=(epochs 60) batch=2048 prefixes=1 dropout=0 smoothing=0
            [ "$attention" != prefix_causal ] || prefixes=4
            training=(--adam-betas '(0.9, 0.98)' --lr 0.002 --warmup-updates 500
                --drafter-block-size 8 --prefixes-per-sentence "$prefixes" --glancing-ratio 0
                --position-decay 0.8)
            ;;
        iwslt) # base's in smaller batches; not tuned
            length=(updates 50000) batch=8192
            training=(--adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --lr 0.0005
                --warmup-updates 4000 --drafter-block-size 25)
            ;;
        base | big | deep-shallow) # Xia et al. 2022, Table 10; blocks of big: section 5.3.2
            length=(updates 300000) batch=131072
            block=25
            [ "$preset" != big ] || block=30
            training=(--adam-betas '(0.9, 0.999)' --adam-eps 1e-6 --lr 0.0005
                --warmup-updates 10000 --drafter-block-size "$block")
            ;;
    esac
    training+=(--lr-scheduler inverse_sqrt --clip-norm 5 --weight-decay 0.01 --dropout "$dropout"
        --criterion block_nat_loss --best-checkpoint-metric accepted)
    switches=(--maximize-best-checkpoint-metric)
    if [[ $preset != tiny && $preset != small ]]; then # glancing falls over the whole run
        training+=(--glancing-ratio 0.5 --glancing-ratio-end 0.3)
        # Their script has --src-embedding-copy. The native engine does not know it, so a drafter for
        # speed goes without; it needs embeddings of one size.
        [[ $attention != bidirectional || -n $(value_of --decoder-embed-dim '') ]] ||
            switches+=(--soft-copy)
    fi
fi
training+=(--label-smoothing "$smoothing")

[ -z "$epochs" ] || length=(epochs "$epochs")
[ -z "$updates" ] || length=(updates "$updates")
if [ "$arch" = shallow_decoder ] && [ "${length[0]}" = updates ]; then
    training+=(--lr-scheduler polynomial_decay --total-num-update "${length[1]}")
elif [ "$arch" = shallow_decoder ]; then # fairseq's linear decay counts updates
    training+=(--lr-scheduler inverse_sqrt)
fi
